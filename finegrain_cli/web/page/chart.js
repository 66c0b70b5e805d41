// Draws lines over time with uPlot. A table of the same values is the text alternative.

import uPlot from "./vendor/uplot.mjs";
import { useEffect, useRef } from "./vendor/hooks.mjs";
import { theme } from "./map_draw.js";
import { html } from "./parts.js";

const HEIGHT = 150;
const DASHES = [[], [6, 4], [2, 3], [10, 3, 2, 3]];
const ROWS = 12; // maximum number of values in the table

/** Returns at most `most` positions of a list of this length. The positions are evenly spaced and include the last position. */
export function sampled(length, most) {
  const step = Math.max(1, Math.ceil(length / most));
  const found = [];
  for (let at = length - 1; at >= 0; at -= step) found.unshift(at);
  return found;
}

/**
 * A chart.
 *
 * `times` are seconds since 1970. Each of `lines` is [name, values, isGuide]. `write` returns the text of a value.
 */
export function Chart({ title, times, lines, write }) {
  const ref = useRef(null);
  const kept = useRef(null);
  const data = [times, ...lines.map(([, values]) => values)];
  const names = lines.map(([name]) => name).join("\n");
  const isEmpty = !times.length;
  useEffect(() => {
    if (isEmpty) return undefined; // without values, the page has no element for the lines yet
    const colors = theme();
    const axis = { stroke: colors.quiet, grid: { stroke: colors.line, width: 0.5 }, ticks: { stroke: colors.line } };
    const options = {
      width: Math.max(200, ref.current.clientWidth), height: HEIGHT, cursor: { drag: { x: false, y: false } },
      legend: { show: false },
      scales: { y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] } },
      axes: [axis, { ...axis, size: 64, values: (_, values) => values.map(write) }],
      series: [{}, ...lines.map(([, , isGuide], at) => ({ stroke: isGuide ? colors.quiet : at % 2 ? colors.text : colors.plain, width: isGuide ? 1 : 1.5, dash: DASHES[at % DASHES.length] }))],
    };
    const plot = new uPlot(options, data, ref.current);
    kept.current = plot;
    const observer = new ResizeObserver(([entry]) => plot.setSize({ width: Math.max(200, entry.contentRect.width), height: HEIGHT }));
    observer.observe(ref.current);
    return () => {
      observer.disconnect();
      plot.destroy();
      kept.current = null;
    };
  }, [names, title, isEmpty]);
  useEffect(() => {
    if (kept.current?.data !== data) kept.current?.setData(data);
  });
  if (isEmpty) return html`<p class="quiet">${title}: no sample yet.</p>`;
  const rows = sampled(times.length, ROWS);
  return html`<figure><figcaption>${title}: ${lines.map(([name, values, isGuide], at) => html`
      <span key=${name} class="key"><svg aria-hidden="true"><line x1="0" x2="26" y1="6" y2="6" class=${isGuide ? "guide" : at % 2 ? "second" : "first"} stroke-dasharray=${DASHES[at % DASHES.length].join(" ")} /></svg>
      ${name} ${write(values.at(-1))}</span> `)}</figcaption>
    <div ref=${ref} class="chart" aria-hidden="true" />
    <details><summary>Values of ${title}</summary><div class="scrolls" tabindex="0" role="region" aria-label=${`Values of ${title}`}><table><thead><tr><th scope="col">time</th>${lines.map(([name]) => html`<th scope="col">${name}</th>`)}</tr></thead>
      <tbody>${rows.map((at) => html`<tr key=${at}><td>${new Date(times[at] * 1000).toLocaleTimeString()}</td>${lines.map(([, values]) => html`<td>${write(values[at])}</td>`)}</tr>`)}</tbody></table></div></details>
  </figure>`;
}

/** The charts of measured use: cpu and memory of slots and of the whole host. */
export function UsageCharts({ samples, write, isSlot }) {
  const times = samples.map((each) => Date.parse(each.sample_time) / 1000);
  const of = (name) => samples.map((each) => each[name]);
  const cpu = [["slots", of("cpu_milli")], ["host", of("host_cpu_milli")]];
  const memory = [["slots", of("memory_bytes")], ["host", of("host_memory_used_bytes")]];
  const lines = (all) => (isSlot ? [["slot", all[0][1]]] : all);
  return html`<div class="charts"><${Chart} title="cpu used" times=${times} lines=${lines(cpu)} write=${write.cpu} />
    <${Chart} title="memory used" times=${times} lines=${lines(memory)} write=${write.bytes} /></div>`;
}
