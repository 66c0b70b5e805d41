// Keeps the address of the view: the path, and a query with the settings of the view. The page can
// restore every view from its address.

import { signal } from "./vendor/signals.mjs";

/** The path of the view that is shown. */
export const place = signal(globalThis.location?.pathname ?? "/");
/** The settings of the view, such as filters. */
export const query = signal(new URLSearchParams(globalThis.location?.search));

globalThis.addEventListener?.("popstate", () => {
  place.value = location.pathname;
  query.value = new URLSearchParams(location.search);
});

/** Returns the query with some settings changed. An empty value removes a setting. */
export function changed(params, changes) {
  const next = new URLSearchParams(params);
  for (const [name, value] of Object.entries(changes)) {
    next.delete(name);
    for (const each of Array.isArray(value) ? value : [value]) if (each) next.append(name, each);
  }
  return next;
}

/** Joins a path and its query. */
export const address = (path, params) => (params.size ? `${path}?${params}` : path);

/** Shows the view of an address, such as "/requests?reason=WAITING_CAPACITY". */
export function go(to) {
  history.pushState(null, "", to);
  const url = new URL(to, location.href);
  place.value = url.pathname;
  query.value = url.searchParams;
  document.getElementById("view")?.focus();
}

/** Changes settings of the view. The browser's "back" skips this change, unless `remembers` is true. */
export function set(changes, remembers = false) {
  query.value = changed(query.value, changes);
  const to = address(place.value, query.value);
  if (remembers) history.pushState(null, "", to);
  else history.replaceState(null, "", to);
}

/** Returns a setting of the view. If the value is not in `allowed`, returns the first allowed value. */
export function setting(name, allowed) {
  const value = query.value.get(name) ?? "";
  return !allowed || allowed.includes(value) ? value : allowed[0];
}

/** These functions return the address of the view of a host, a request or a job. */
export const executorPath = (id) => `/executors/${encodeURIComponent(id)}`;
export const requestPath = (id) => `/requests/${encodeURIComponent(id)}`;
export const jobPath = (id) => `/jobs/${encodeURIComponent(id)}`;
