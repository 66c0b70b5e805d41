// Groups as a tree with weight, share and use. Also the use of one group in the last hour.

import { get } from "../api.js";
import { Chart } from "../chart.js";
import { cluster } from "../cluster.js";
import { amounts, bytes, count, cpu, memory, percent } from "../format.js";
import { useState } from "../vendor/hooks.mjs";
import { LIMITS, groupChange, typedSettings, useLines } from "../group_model.js";
import { Action, Link, Shown, html, mayChange, useData } from "../parts.js";
import { set, setting } from "../place.js";

const share = (part) => `${(100 * part).toFixed(1)} %`;

export function Groups() {
  const found = useData(() => get("/v1/groups"), "groups");
  return html`<h1>Groups</h1><p class="quiet">Bar: share of all use now. Mark: the share by weight, among the groups that have work.</p>
    <${Shown} found=${found}>${(data) => html`<ul class="tree">${branch(data.groups, "")}</ul>`}<//>`;
}

function branch(groups, parent) {
  return groups.filter((group) => group.parent === parent).map((group) => html`<li key=${group.name}>
    <${Group} group=${group} />
    ${groups.some((each) => each.parent === group.name) && html`<ul>${branch(groups, group.name)}</ul>`}
  </li>`);
}

function Group({ group }) {
  const open = setting("group") === group.name;
  const text = `share ${share(group.share_now)} of use, entitled to ${share(group.share_entitled)}`;
  return html`<button class="plain" aria-expanded=${String(open)} onClick=${() => set({ group: open ? "" : group.name }, true)}>
      <span aria-hidden="true">${open ? "▾" : "▸"}</span> ${group.name}</button>
    weight ${group.weight}, ${count(group.running, "slot")}, ${group.waiting} waiting, <${Link} to=${`/jobs?group=${encodeURIComponent(group.name)}`}>${count(group.jobs, "job")}<//>
    <div class="share" role="img" aria-label=${text}>
      <svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class="free" width="100" height="8" />
        <rect class="allocated" width=${percent(group.share_now, 1)} height="8" />
        <rect class="ideal" x=${percent(group.share_entitled, 1)} width="0.6" height="8" /></svg></div>
    <span class="quiet">${text}; has ${amounts(group.used)}, uses ${amounts(group.measured)}</span>
    ${open && html`<${Opened} group=${group} />`}`;
}

function Opened({ group }) {
  const path = `/v1/groups/${encodeURIComponent(group.name)}/usage`;
  const found = useData(() => get(path), path, 30_000);
  return html`<section class="panel" aria-label=${`Group ${group.name}`}>
    <dl class="sums">
      ${group.description && html`<div><dt>description</dt><dd>${group.description}</dd></div>`}
      <div><dt>minimum</dt><dd>${Object.keys(group.minimum).length ? amounts(group.minimum) : "none"}</dd></div>
      <div><dt>maximum</dt><dd>${Object.keys(group.maximum).length ? amounts(group.maximum) : "none"}</dd></div>
      <div><dt>users</dt><dd>${group.users.join(", ") || "none"}</dd></div>
      <div><dt>recent usage</dt><dd>${group.service.toFixed(1)}</dd></div>
    </dl>
    ${mayChange() && html`<${Change} key=${group.name} group=${group} />`}
    <${Shown} found=${found}>${({ samples }) => {
      const times = samples.map((each) => Date.parse(each.sample_time) / 1000);
      const total = cluster.value?.total;
      const of = (name) => samples.map((each) => each[name]);
      return html`<div class="charts">
        <${Chart} title="share" times=${times} write=${share} lines=${[["has", of("share_now")], ["entitled to", of("share_entitled"), true]]} />
        <${Chart} title="cpu" times=${times} write=${cpu} lines=${useLines(samples, { used: "measured_cpu_milli", allocated: "cpu_milli", total: total?.cpu_milli, minimum: group.minimum.cpu_milli, maximum: group.maximum.cpu_milli })} />
        <${Chart} title="memory" times=${times} write=${bytes} lines=${useLines(samples, { used: "measured_memory_bytes", allocated: "memory_bytes", total: total && memory(total), minimum: group.minimum.memory_bytes, maximum: group.maximum.memory_bytes })} />
        <${Chart} title="requests that wait" times=${times} write=${String} lines=${[["requests", of("waiting")]]} /></div>`;
    }}<//></section>`;
}

/** Changes the weight and the limits of a group. The dialog shows the shares before and after. */
function Change({ group }) {
  const [typed, set] = useState(typedSettings(group));
  const body = groupChange(group, typed);
  const limits = (kind, legend) => html`<fieldset><legend>${legend}</legend>${LIMITS.map(([name, words]) => html`
    <label key=${name}>${words} <input type="number" min="0" step="any" value=${typed[kind][name]} onInput=${(event) => set({ ...typed, [kind]: { ...typed[kind], [name]: event.target.value } })} /></label>`)}</fieldset>`;
  return html`<div class="controls">
    <label>Weight <input type="number" min="0.001" max="1000000" step="any" value=${typed.weight} onInput=${(event) => set({ ...typed, weight: event.target.value })} /></label>
    ${limits("minimum", "Minimum (reserved)")}${limits("maximum", "Maximum (empty: no limit)")}
    ${body && html`<${Action} label="Change" question=${`Change group ${group.name}?`} method="PATCH" path=${`/v1/groups/${encodeURIComponent(group.name)}`}
      body=${body} preview=${{ action: "SET_GROUP", group: group.name, ...body }} />`}</div>`;
}
