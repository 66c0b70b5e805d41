// The settings of a host for cpus: the values in effect, and a form to change them.

import { get } from "../api.js";
import { useState } from "../vendor/hooks.mjs";
import { WORDS, policyChange, typedPolicy } from "../policy_model.js";
import { Action, Shown, Table, html, mayChange, useData } from "../parts.js";

const NAMES = ["bind", "numa_strategy", "alignment", "reserved_cpus", "strictly_reserved_cpus", "default_bind", "default_exclusive"];

const COLUMNS = [
  ["setting", ({ name }) => name.replaceAll("_", " ")],
  ["in effect", ({ value }) => value || "none"],
  ["set by", ({ origin }) => origin],
];

/** The settings of a host. */
export function Policy({ id }) {
  const path = `/v1/executors/${encodeURIComponent(id)}/policy`;
  const found = useData(() => get(path), path, 30_000);
  return html`<h2>Cpu policy</h2><${Shown} found=${found}>${({ set, effective, number }) => html`
    <${Table} caption="Settings for new slots" columns=${COLUMNS} empty="" id="name"
      rows=${NAMES.map((name) => ({ name, value: effective[name], origin: effective.origins[name.replace("strictly_", "")] ?? "built-in" }))} />
    ${mayChange() && html`<${Change} key=${number} id=${id} path=${path} set=${set} />`}`}<//>`;
}

function Change({ id, path, set }) {
  const [typed, type] = useState(typedPolicy(set));
  const body = policyChange(set, typed);
  const changed = (name) => (event) => type({ ...typed, [name]: event.target.value });
  const choice = (name, label, values) => html`<label key=${name}>${label} <select value=${typed[name]} onChange=${changed(name)}>
    ${["", ...values].map((value) => html`<option key=${value} value=${value} selected=${value === typed[name]}>${value || "not set"}</option>`)}</select></label>`;
  return html`<fieldset class="controls"><legend>Set for this host</legend>
    ${WORDS.map(([name, label, values]) => choice(name, label, values))}
    <label>reserved cpus <input value=${typed.reserved_cpus} maxlength="1000" placeholder="not set" onInput=${changed("reserved_cpus")} /></label>
    ${choice("reserved_strict", "reserved cpus in no shared pool", ["true", "false"])}
    ${body && html`<${Action} label="Change policy" question=${`Change the cpu policy of ${id}? The change applies to new slots.`} method="PATCH" path=${path}
      body=${body} preview=${{ action: "SET_HOST_POLICY", executor_id: id, ...body }} />`}</fieldset>`;
}
