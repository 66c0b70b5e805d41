// All hosts of the cluster, kept up to date: a changed host is read alone, and all hosts from time to
// time. The larger the cluster, the more rarely all hosts are read.

import { useEffect } from "./vendor/hooks.mjs";
import { effect, signal } from "./vendor/signals.mjs";
import { get, list, news, touched } from "./api.js";

const PAGE = 250; // hosts in one answer: the page stays responsive while it reads them
const ALONE_MAX = 12; // changed hosts that are read one by one
const EVERY_MS = 5000;
const REST = 20; // all hosts are read during at most one twentieth of the time

/** The sums of the cluster; null: not read yet. */
export const cluster = signal(null);
/** All hosts, in order of id; null: not read yet. */
export const hosts = signal(null);
/** The group of each job, by id. */
export const groupOfJob = signal(new Map());
/** Why the first answer is missing; null: it is there. */
export const problem = signal(null);

let users = 0;
let stop = null;

/** Keeps `cluster` and `hosts` up to date as long as a view shows them. */
export function useCluster() {
  useEffect(() => {
    users += 1;
    stop ??= start();
    return () => {
      users -= 1;
      if (users === 0) {
        stop();
        stop = null;
      }
    };
  }, []);
}

function start() {
  let ended = false;
  let timer = 0;
  let reading = false;

  const all = async () => {
    clearTimeout(timer);
    if (reading) return;
    reading = true;
    const began = performance.now();
    try {
      cluster.value = await get("/v1/cluster");
      await readHosts(() => ended);
      await readJobs();
      problem.value = null;
    } catch (error) {
      problem.value = error;
    }
    reading = false;
    if (!ended) timer = setTimeout(all, Math.max(EVERY_MS, REST * (performance.now() - began)));
  };

  const some = async (names) => {
    try {
      const [sums, ...found] = await Promise.all([
        get("/v1/cluster"),
        ...names.map((name) => get(`/v1/executors/${encodeURIComponent(name)}`).catch(() => null)),
      ]);
      if (ended) return;
      cluster.value = sums;
      replace(found.filter(Boolean));
    } catch {
      // the banner says that the resource manager does not answer
    }
  };

  let seen = news.value;
  const unsubscribe = effect(() => {
    if (news.value === seen) return;
    seen = news.value;
    const names = touched.value && [...touched.value];
    if (!hosts.value || !names || names.length > ALONE_MAX) all();
    else some(names);
  });
  all();
  return () => {
    ended = true;
    clearTimeout(timer);
    unsubscribe();
  };
}

async function readHosts(ended) {
  const found = [];
  let page = "";
  let next = hosts.peek() ? Infinity : 1;
  do {
    const token = page && `&page_token=${encodeURIComponent(page)}`;
    const data = await get(`/v1/executors?page_size=${PAGE}${token}`);
    if (ended()) return;
    found.push(...data.items);
    if (found.length >= next) {
      // the first hosts are shown before the last ones arrive
      hosts.value = [...found];
      next = 4 * found.length;
    }
    page = data.next_page_token;
  } while (page);
  hosts.value = found;
}

async function readJobs() {
  const jobs = await list("/v1/jobs");
  groupOfJob.value = new Map(jobs.map((job) => [job.job_id, job.group]));
}

/** Reads the groups of jobs once, for a view that shows slots only. */
export function useJobs() {
  useEffect(() => {
    readJobs().catch(() => {}); // colors of groups are missing until the next view
  }, []);
}

/** Replaces hosts by newer ones; a host that is not known yet is added. */
function replace(newer) {
  const names = new Map(newer.map((each) => [each.executor_id, each]));
  const next = hosts.value.map((each) => {
    const found = names.get(each.executor_id);
    names.delete(each.executor_id);
    return found ?? each;
  });
  hosts.value = [...next, ...names.values()];
}
