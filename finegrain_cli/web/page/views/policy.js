// The settings for cpus of a host or of all hosts: the values in effect, and a form to change them.

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
  return html`<h2>Cpu policy</h2><${Settings} id=${id} path=${`/v1/executors/${encodeURIComponent(id)}/policy`} />`;
}

/** The settings of the cluster, which apply to each host without a setting of its own. They are read when the section is opened. */
export function ClusterPolicy() {
  const [open, show] = useState(false);
  return html`<section><h2><button class="plain" aria-expanded=${String(open)} onClick=${() => show(!open)}>
    <span aria-hidden="true">${open ? "▾" : "▸"}</span> Cpu policy of all hosts</button></h2>
    ${open && html`<${Settings} id="" path="/v1/policy" />`}</section>`;
}

function Settings({ id, path }) {
  const found = useData(() => get(path), path, 30_000);
  return html`<${Shown} found=${found}>${({ set, effective, number }) => html`
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
  return html`<fieldset class="controls"><legend>Set for ${id ? "this host" : "all hosts"}</legend>
    ${WORDS.map(([name, label, values]) => choice(name, label, values))}
    <label>reserved cpus <input value=${typed.reserved_cpus} maxlength="1000" placeholder="not set" onInput=${changed("reserved_cpus")} /></label>
    ${choice("reserved_strict", "reserved cpus in no shared pool", ["true", "false"])}
    ${body && html`<${Action} label="Change policy" question=${`Change the cpu policy of ${id || "all hosts"}? The change applies to new slots.`} method="PATCH" path=${path}
      body=${body} preview=${{ action: "SET_HOST_POLICY", ...(id && { executor_id: id }), ...body }} />`}</fieldset>`;
}
