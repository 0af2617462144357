# SPDX-License-Identifier: Apache-2.0
"""The report's style sheet: system fonts, light and dark, narrow screens, print."""

CSS = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1c2430; --ink-soft: #5b6675; --rule: #dfe3e8;
  --first: #2563b8; --second: #c2571a; --good: #1a7f4b; --warn: #9a6700; --bad: #b3261e;
  --good-bg: #e3f4ea; --warn-bg: #fdf3d7; --bad-bg: #fce4e2; --mark: #fff3b8;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12161c; --card: #1a2029; --ink: #e4e8ee; --ink-soft: #98a3b3; --rule: #2e3642;
    --first: #6fa8f0; --second: #f0975a; --good: #58c98b; --warn: #e0b04a; --bad: #f2857c;
    --good-bg: #14301f; --warn-bg: #33290f; --bad-bg: #3a1a17; --mark: #4a4212;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 44px 0 12px; }
h3 { font-size: .95rem; margin: 0 0 4px; }
p { margin: 0 0 10px; }
.soft { color: var(--ink-soft); font-size: .9rem; }
.facts { display: flex; flex-wrap: wrap; gap: 2px 20px; margin: 0 0 22px; font-size: .9rem; }
.facts div { display: flex; gap: 6px; }
.facts dt { color: var(--ink-soft); }
.facts dd { margin: 0; overflow-wrap: anywhere; }
.panel {
  background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 18px 20px;
}
.verdict { border-left: 5px solid var(--ink-soft); }
.verdict p { max-width: 88ch; }
.verdict ul { margin: 4px 0 0; padding-left: 1.2em; }
.verdict li { margin: 3px 0; }
.badge {
  display: inline-block; border-radius: 99px; padding: 1px 12px; margin-bottom: 8px;
  font-size: .82rem; font-weight: 600; background: var(--rule);
}
.better { border-left-color: var(--good); }
.better .badge { background: var(--good-bg); color: var(--good); }
.unclear, .unfinished { border-left-color: var(--warn); }
.unclear .badge, .unfinished .badge { background: var(--warn-bg); color: var(--warn); }
.worse { border-left-color: var(--bad); }
.worse .badge { background: var(--bad-bg); color: var(--bad); }
.cards { display: grid; gap: 12px; margin-top: 16px;
  grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); }
.cards .panel { padding: 14px 16px; }
.cards .value { font-size: 1.55rem; font-weight: 650; line-height: 1.3;
  font-variant-numeric: tabular-nums; }
.cards .from { color: var(--ink-soft); font-size: .9rem; font-variant-numeric: tabular-nums; }
.cards .soft { font-size: .8rem; }
.charts { display: grid; gap: 14px; grid-template-columns: repeat(auto-fit, minmax(310px, 1fr)); }
.charts .panel { padding: 14px 16px 12px; }
.charts svg { display: block; width: 100%; height: auto; margin: 6px 0; }
.charts p { margin: 0; font-size: .84rem; color: var(--ink-soft); }
.charts b { font-weight: 600; color: var(--ink); }
.scroll { overflow-x: auto; padding: 4px 0; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th, td { text-align: left; padding: 7px 14px; border-bottom: 1px solid var(--rule);
  vertical-align: top; }
tbody tr:last-child td, tbody tr:last-child th { border-bottom: 0; }
thead th { color: var(--ink-soft); font-weight: 600; white-space: nowrap; }
tbody th { font-weight: 500; }
tbody th code { white-space: nowrap; }
td.number, th.number { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
td.number small { display: block; color: var(--ink-soft); }
.panel.table { padding: 4px 0; }
code, .mono { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .84em;
  overflow-wrap: anywhere; }
tr.changed { background: var(--warn-bg); }
tr.result { background: var(--good-bg); }
.sample { margin-bottom: 14px; padding: 0; overflow: hidden; }
.sample .prompt { padding: 12px 18px; border-bottom: 1px solid var(--rule); }
.sample .pair { display: grid; grid-template-columns: 1fr 1fr; }
.sample .pair > div { padding: 12px 18px; min-width: 0; }
.sample .pair > div + div { border-left: 1px solid var(--rule); }
.sample pre { margin: 4px 0 0; font: inherit; font-size: .9rem; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.sample .prompt pre { color: var(--ink-soft); max-height: 15em; overflow-y: auto; }
.label { font-size: .76rem; font-weight: 650; letter-spacing: .05em; text-transform: uppercase;
  color: var(--ink-soft); }
.label em { font-style: normal; font-weight: 500; letter-spacing: 0; text-transform: none; }
mark { background: var(--mark); color: inherit; border-radius: 3px; }
details { margin-top: 12px; }
summary { cursor: pointer; color: var(--first); font-size: .92rem; padding: 4px 0; }
footer { margin-top: 48px; color: var(--ink-soft); font-size: .84rem; }
@media (max-width: 640px) {
  main { padding: 20px 14px 48px; }
  h1 { font-size: 1.3rem; }
  .cards { grid-template-columns: 1fr 1fr; gap: 10px; }
  .cards .value { font-size: 1.25rem; }
  .charts { grid-template-columns: 1fr; }
  .sample .pair { grid-template-columns: 1fr; }
  .sample .pair > div + div { border-left: 0; border-top: 1px solid var(--rule); }
  th, td { padding: 6px 10px; }
}
@media print {
  :root {
    --page: #fff; --card: #fff; --ink: #000; --ink-soft: #444; --rule: #ccc; --first: #1d4f94;
    --second: #a34510; --good: #146239; --warn: #7a5200; --bad: #8f1d17;
  }
  body { font-size: 11pt; }
  main { max-width: none; padding: 0; }
  .panel, tr { break-inside: avoid; }
  .sample .prompt pre { max-height: none; }
  h2 { break-after: avoid; margin-top: 24px; }
  p.soft { break-after: avoid; }
  .cards { grid-template-columns: repeat(auto-fit, minmax(120px, 1fr)); gap: 6px; }
  .cards .panel { padding: 8px 10px; }
  .cards .value { font-size: 1.2rem; }
  .charts { grid-template-columns: 1fr 1fr 1fr; gap: 8px; }
  .charts .panel { padding: 8px; }
  .charts p { font-size: .72rem; }
  .scroll { overflow: visible; }
  table { font-size: .74rem; }
  th, td { padding: 4px 7px; }
  thead th { white-space: normal; }
  details { display: none; }
}
"""
