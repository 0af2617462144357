# SPDX-License-Identifier: Apache-2.0
"""Where time went: own times, kinds, and a real trace of a small program."""

import json

import jax
import jax.numpy as jnp
import pytest

from alignax.train.profiler import Profiler, ReadableStep
from alignax.train.trace import Instruction, Op, own_seconds, read_instructions, time_by_kind

TEXT = """\
HloModule jit_train_step, is_scheduled=true

%fused.1 (p0: f32[2,2]) -> f32[2,2] {
  %p0 = f32[2,2]{1,0} parameter(0)
  ROOT %dot.3 = f32[2,2]{1,0} dot(%p0, %p0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%fused.2 (p1: f32[2]) -> f32[] {
  %p1 = f32[2]{0} parameter(0)
  ROOT %max.1 = f32[] reduce(%p1), to_apply=%larger
}

%round (s: (s32[], f32[2,2], f32[])) -> (s32[], f32[2,2], f32[]) {
  %s = (s32[], f32[2,2]{1,0}, f32[]) parameter(0)
  %lost = f32[2,2]{1,0} fusion(%s), kind=kCustom, calls=%fused.1, metadata={stack_frame_id=2}
  ROOT %next = (s32[], f32[2,2]{1,0}, f32[]) tuple(%lost)
}

ENTRY %main.9 (a: f32[2,2]) -> (f32[2,2], f32[]) {
  %a = f32[2,2]{1,0} parameter(0), metadata={op_name="state"}
  %mix = f32[2,2]{1,0} fusion(%a), kind=kOutput, calls=%fused.1, \
metadata={op_name="jit(train_step)/while/body/add"}
  %norm = f32[] fusion(%a), kind=kLoop, calls=%fused.2, metadata={op_name="jit(train_step)/max"}
  %scores = f32[2,2]{1,0} dot(%a, %a), \
metadata={op_name="jit(train_step)/transpose(jvp(attention))/while/body/dot_general"}
  %loop = (s32[], f32[2,2]{1,0}, /*index=2*/f32[]) while(%mix), condition=%c, body=%round, \
metadata={op_name="jit(train_step)/head/while"}
  ROOT %end = (f32[2,2]{1,0}, f32[]) tuple(%mix, %norm)
}
"""


def test_scopes_and_products_decide_the_kind():
    found = read_instructions(TEXT)
    kinds = {name: found[name].kind for name in ("mix", "norm", "scores", "loop", "lost", "end")}
    assert kinds == {
        "mix": "projections", "norm": "norms and elementwise", "scores": "attention",
        "loop": "head", "lost": "head", "end": "norms and elementwise",
    }  # fmt: skip
    assert found["norm"].origin == "jit(train_step)/max"


def test_own_time_is_without_what_runs_inside():
    ops = [
        Op("a", "loop", 0.0, 10.0), Op("a", "dot", 1.0, 4.0), Op("a", "call", 4.0, 9.0),
        Op("a", "dot", 5.0, 7.0), Op("a", "loop", 12.0, 13.0), Op("b", "copy", 9.0, 12.0),
    ]  # fmt: skip
    seconds, counts, busy = own_seconds(reversed(ops))
    assert seconds == {"loop": 3.0, "dot": 5.0, "call": 3.0, "copy": 3.0}
    assert counts == {"loop": 2, "dot": 2, "call": 1, "copy": 1}
    assert busy == 13.0


def test_kinds_and_the_host_share_the_wall_time():
    ops = [Op("a", "dot", 0.0, 6.0), Op("b", "exp", 2.0, 6.0), Op("a", "other", 8.0, 10.0)]
    known = {"dot": Instruction("projections", "x"), "exp": Instruction("attention", "y")}
    table = time_by_kind(ops, known, wall=16.0)
    seconds = {part["kind"]: part["seconds"] for part in table["kinds"]}
    assert seconds == pytest.approx(
        {"host": 8.0, "projections": 4.0, "attention": 8 / 3, "norms and elementwise": 4 / 3,
         "head": 0.0, "optimizer": 0.0}
    )  # fmt: skip
    assert sum(part["share"] for part in table["kinds"]) == pytest.approx(1.0)
    assert [op["op"] for op in table["slowest"]] == ["dot", "exp", "other"]


def test_a_real_trace_is_attributed(tmp_path):
    def train_step(x):
        def body(_, x):
            with jax.named_scope("attention"):
                x = x @ x / 256
            return jnp.tanh(x)

        return jax.lax.fori_loop(0, 8, body, x)

    step, told, x = ReadableStep(jax.jit(train_step)), [], jnp.ones((256, 256))
    profiler = Profiler(tmp_path, 2, step.text, told.append)
    for number in range(1, 7):
        step(x).block_until_ready()
        profiler.on_step(number, {"seconds": 10.0})
    profiler.close()
    table = json.loads((tmp_path / "profile.json").read_text())
    assert told == [table]
    assert (table["steps"], table["last_step"], table["seconds_per_step"]) == (2, 4, 10.0)
    parts = {part["kind"]: part for part in table["kinds"]}
    assert parts["attention"]["operations"] >= 16
    assert parts["attention"]["seconds"] > 0
    assert parts["projections"]["operations"] == 0
    assert sum(part["seconds"] for part in table["kinds"]) == pytest.approx(20.0)
    assert list(tmp_path.glob("profile/plugins/profile/*/*.trace.json.gz"))


def test_a_run_that_ends_early_still_gets_its_table(tmp_path):
    step, x = ReadableStep(jax.jit(lambda x: x + 1)), jnp.ones(4)
    told = []
    profiler = Profiler(tmp_path, 50, step.text, told.append)
    for number in range(1, 4):
        step(x).block_until_ready()
        profiler.on_step(number, {"seconds": 1.0})
    profiler.close()
    assert [table["steps"] for table in told] == [1]
