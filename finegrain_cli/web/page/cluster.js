// The sums of the cluster and all its hosts, as the live stream sends them.

import { useEffect } from "./vendor/hooks.mjs";
import { effect, signal } from "./vendor/signals.mjs";
import { list, live } from "./api.js";

const JOBS_MS = 5000; // groups of jobs are read again after this time

/** The sums of the cluster, or null if they have not been read yet. */
export const cluster = signal(null);
/** All hosts, in order of id, or null if they have not been read yet. */
export const hosts = signal(null);
/** The group of each job, by id. */
export const groupOfJob = signal(new Map());

let parts = [];
let readAt = 0;

effect(() => {
  const message = live.value;
  if (!message) return;
  if (message.cluster) cluster.value = message.cluster;
  if (message.kind === "snapshot") {
    parts = message.first ? message.executors : [...parts, ...message.executors];
    // show the first hosts before the last hosts arrive
    if (!message.more || !hosts.peek()) hosts.value = parts;
  } else {
    hosts.value = changed(hosts.peek() ?? [], message);
  }
});

/** Returns the hosts after a change, in order of id. */
export function changed(known, { executors, used, gone }) {
  const newer = new Map(executors.map((each) => [each.executor_id, each]));
  const left = new Set(gone);
  const next = [];
  for (const each of known) {
    const id = each.executor_id;
    if (left.has(id)) continue;
    next.push(newer.get(id) ?? (used[id] ? { ...each, used: used[id] } : each));
    newer.delete(id);
  }
  if (newer.size === 0) return next;
  return [...next, ...newer.values()].sort((a, b) => (a.executor_id < b.executor_id ? -1 : 1));
}

/** Keeps `groupOfJob` up to date as long as a view shows the cluster. */
export function useCluster() {
  const version = hosts.value;
  useEffect(() => {
    if (Date.now() - readAt < JOBS_MS) return;
    readAt = Date.now();
    readJobs().catch(() => {}); // ignore the error: the colors of groups are missing until the next change
  }, [version]);
}

async function readJobs() {
  const jobs = await list("/v1/jobs");
  groupOfJob.value = new Map(jobs.map((job) => [job.job_id, job.group]));
}

/** Reads the groups of jobs once, for a view that shows only slots. */
export function useJobs() {
  useEffect(() => {
    readJobs().catch(() => {}); // ignore the error: the colors of groups are missing until the next view
  }, []);
}
