// The page: begins the session, and shows the view of the address.

import { render } from "./vendor/preact.mjs";
import { answered, begin, failure, identity, lasting, leave, now } from "./api.js";
import { Link, Patterns, html } from "./parts.js";
import { place } from "./place.js";
import { Overview } from "./views/overview.js";
import { Executor } from "./views/executor.js";
import { Request, Requests } from "./views/requests.js";
import { Events } from "./views/events.js";
import { Groups } from "./views/groups.js";
import { Job, Jobs } from "./views/jobs.js";

const STALE_MS = 3000; // a stream without changes sends a comment every second

const VIEWS = [
  ["/", "Cluster", Overview],
  ["/requests", "Requests", Requests],
  ["/jobs", "Jobs", Jobs],
  ["/groups", "Groups", Groups],
  ["/events", "Events", Events],
];

function view(path) {
  const [, kind, id] = /^\/(executors|requests|jobs)\/(.+)$/.exec(path) ?? [];
  if (kind) {
    const One = { executors: Executor, requests: Request, jobs: Job }[kind];
    return html`<${One} key=${path} id=${decodeURIComponent(id)} />`;
  }
  const [, , View] = VIEWS.find(([known]) => known === path) ?? VIEWS[0];
  return html`<${View} key=${path} />`;
}

function Banner() {
  const stale = now.value - answered.value > STALE_MS;
  if (!failure.value && !stale) return null;
  const since = answered.value ? new Date(answered.value).toLocaleTimeString() : "never";
  return html`<p id="stale" role="alert">Not up to date: ${failure.value || "no news from the resource manager"}. Last answer: ${since}.</p>`;
}

function Page() {
  return html`<a class="skip" href="#view">Skip to content</a>
    <header><nav aria-label="Views">${VIEWS.map(([path, name]) => html`
      <${Link} to=${path} aria-current=${place.value === path ? "page" : undefined}>${name}<//>`)}</nav>
      <span class="quiet">${identity.value}${lasting.value && html` <button onClick=${leave}>End session</button>`}</span></header>
    <${Patterns} /><${Banner} /><main id="view" tabindex="-1">${view(place.value)}</main>`;
}

function Refused({ error }) {
  const leading = error.details?.leading_page ?? "";
  return html`<main><h1>finegrain</h1><p role="alert" class="bad">${error.message}</p>
    ${leading.startsWith("https://")
      ? html`<p><a href=${leading}>The page of the resource manager that leads</a></p>`
      : error.code === "NOT_LEADER" && html`<p>This page does not know the address of the leader's page, or only the leader's host can open it.
        The command <code>finegrain web</code> finds the leader.</p>`}</main>`;
}

const root = document.getElementById("page");
root.textContent = "";
begin().then(
  () => render(html`<${Page} />`, root),
  (error) => render(html`<${Refused} error=${error} />`, root),
);
