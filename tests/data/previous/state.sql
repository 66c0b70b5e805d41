--
-- PostgreSQL database dump
--


-- Dumped from database version 15.18 (Debian 15.18-0+deb12u1)
-- Dumped by pg_dump version 15.18 (Debian 15.18-0+deb12u1)

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: alembic_version; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);


--
-- Name: cluster_events; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.cluster_events (
    sequence bigint NOT NULL,
    time_ms bigint NOT NULL,
    kind text NOT NULL,
    executor_id text NOT NULL,
    job_id text NOT NULL,
    allocation_id text NOT NULL,
    reason text NOT NULL,
    message text NOT NULL
);


--
-- Name: counters; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.counters (
    name text NOT NULL,
    value bigint NOT NULL
);


--
-- Name: executors; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.executors (
    executor_id text NOT NULL,
    instance_id text NOT NULL,
    address text NOT NULL,
    total text NOT NULL,
    reserved text NOT NULL,
    default_profile text NOT NULL,
    labels text NOT NULL,
    slots_max bigint NOT NULL,
    shared_cpus text NOT NULL,
    topology text NOT NULL,
    isolation text NOT NULL,
    boot_id text NOT NULL,
    protocol_version text NOT NULL,
    software_version text NOT NULL,
    registration_number bigint NOT NULL,
    draining boolean NOT NULL,
    drain_reason text NOT NULL,
    drain_deadline_time_ms bigint,
    first_seen_time_ms bigint NOT NULL,
    lost boolean NOT NULL,
    provided_as text DEFAULT ''::text NOT NULL,
    host_cpus text DEFAULT '{}'::text NOT NULL
);


--
-- Name: gangs; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.gangs (
    gang_id text NOT NULL,
    job_id text NOT NULL,
    placement text NOT NULL,
    label text NOT NULL,
    timeout_ms bigint,
    arrival_number bigint NOT NULL,
    waiting_since_time_ms bigint NOT NULL
);


--
-- Name: groups; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.groups (
    name text NOT NULL,
    parent text NOT NULL,
    weight text NOT NULL,
    minimum text NOT NULL,
    maximum text NOT NULL,
    description text NOT NULL,
    create_time_ms bigint NOT NULL
);


--
-- Name: host_settings; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.host_settings (
    executor_id text NOT NULL,
    policy text NOT NULL,
    number bigint NOT NULL,
    set_time_ms bigint NOT NULL
);


--
-- Name: job_events; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.job_events (
    job_id text NOT NULL,
    sequence bigint NOT NULL,
    time_ms bigint NOT NULL,
    allocation_id text NOT NULL,
    state text NOT NULL,
    reason text NOT NULL,
    message text NOT NULL,
    slot text,
    count bigint DEFAULT 1 NOT NULL
);


--
-- Name: jobs; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.jobs (
    job_id text NOT NULL,
    name text NOT NULL,
    group_name text NOT NULL,
    lease_ms bigint,
    secret_sha256 text NOT NULL,
    request_id_sha256 text NOT NULL,
    arrival_number bigint NOT NULL,
    create_time_ms bigint NOT NULL,
    state text NOT NULL,
    end_reason text NOT NULL,
    end_time_ms bigint,
    last_sequence bigint NOT NULL,
    trimmed_sequence bigint NOT NULL,
    specified boolean,
    witness_allocation_id text NOT NULL
);


--
-- Name: leadership; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.leadership (
    id bigint NOT NULL,
    holder text NOT NULL,
    rm_epoch bigint NOT NULL,
    until_time_ms bigint NOT NULL,
    address text DEFAULT ''::text NOT NULL,
    CONSTRAINT ck_leadership_one_row CHECK ((id = 1))
);


--
-- Name: meta; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.meta (
    key text NOT NULL,
    value text NOT NULL
);


--
-- Name: provisions; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.provisions (
    executor_id text NOT NULL,
    shape text NOT NULL,
    number bigint NOT NULL,
    cause text NOT NULL,
    ask_time_ms bigint NOT NULL,
    state text NOT NULL,
    handle text NOT NULL,
    message text NOT NULL
);


--
-- Name: request_ranges; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.request_ranges (
    range_id text NOT NULL,
    first_index bigint NOT NULL,
    count bigint NOT NULL,
    job_id text NOT NULL,
    arrival_number bigint NOT NULL,
    create_time_ms bigint NOT NULL,
    profile text,
    cpu_limit_milli bigint NOT NULL,
    pids_max bigint NOT NULL,
    required_labels text NOT NULL,
    allow_pending boolean NOT NULL,
    restart_on_loss boolean NOT NULL,
    ended text NOT NULL,
    cpu_policy text DEFAULT ''::text NOT NULL
);


--
-- Name: requests; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.requests (
    allocation_id text NOT NULL,
    job_id text NOT NULL,
    arrival_number bigint NOT NULL,
    create_time_ms bigint NOT NULL,
    state text NOT NULL,
    reason text NOT NULL,
    message text NOT NULL,
    generation bigint NOT NULL,
    end_time_ms bigint,
    profile text,
    cpu_limit_milli bigint NOT NULL,
    pids_max bigint NOT NULL,
    required_labels text NOT NULL,
    target_address text NOT NULL,
    allow_pending boolean NOT NULL,
    restart_on_loss boolean NOT NULL,
    gang_id text DEFAULT ''::text NOT NULL,
    cpu_policy text DEFAULT ''::text NOT NULL
);


--
-- Name: slots; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.slots (
    allocation_id text NOT NULL,
    generation bigint NOT NULL,
    job_id text NOT NULL,
    executor_id text NOT NULL,
    profile text NOT NULL,
    cpu_limit_milli bigint NOT NULL,
    pids_max bigint NOT NULL,
    cpus text NOT NULL,
    state text NOT NULL,
    allocated_time_ms bigint,
    isolation text,
    resize_number bigint DEFAULT 0 NOT NULL,
    ordered text,
    wanted text,
    assignment text
);


--
-- Name: tallies; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.tallies (
    flow_id text NOT NULL,
    measure text NOT NULL,
    service text NOT NULL,
    raised text NOT NULL,
    time_ms bigint NOT NULL,
    durations text NOT NULL
);


--
-- Data for Name: alembic_version; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.alembic_version VALUES ('0005');


--
-- Data for Name: cluster_events; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.cluster_events VALUES (1, 1700000001000, 'group_set', '', '', '', '', 'research: weight 3');
INSERT INTO public.cluster_events VALUES (2, 1700000001000, 'group_set', '', '', '', '', 'nightly: weight 0.5, part of research, minimum 1 cpu, maximum 6 cpu, 4 license');
INSERT INTO public.cluster_events VALUES (3, 1700000001000, 'group_set', '', '', '', '', 'spare: weight 1');
INSERT INTO public.cluster_events VALUES (4, 1700000001000, 'group_deleted', '', '', '', '', 'spare');
INSERT INTO public.cluster_events VALUES (5, 1700000001000, 'job_registered', '', 'batch', '', '', 'batch');
INSERT INTO public.cluster_events VALUES (6, 1700000001000, 'job_registered', '', 'service', '', '', 'service');
INSERT INTO public.cluster_events VALUES (7, 1700000001000, 'job_registered', '', 'gangs', '', '', 'gangs');
INSERT INTO public.cluster_events VALUES (8, 1700000001000, 'job_registered', '', 'pinned', '', '', 'pinned');
INSERT INTO public.cluster_events VALUES (9, 1700000001000, 'job_registered', '', 'defaults', '', '', 'defaults');
INSERT INTO public.cluster_events VALUES (10, 1700000001000, 'job_registered', '', 'ended', '', '', 'ended');
INSERT INTO public.cluster_events VALUES (11, 1700000001000, 'job_registered', '', 'empty', '', '', 'empty');
INSERT INTO public.cluster_events VALUES (12, 1700000001000, 'executor_registered', 'host-a', '', '', '', 'registration 1 at host-a:7000');
INSERT INTO public.cluster_events VALUES (13, 1700000001000, 'executor_registered', 'host-b', '', '', '', 'registration 1 at host-b:7000');
INSERT INTO public.cluster_events VALUES (14, 1700000001000, 'executor_registered', 'host-d', '', '', '', 'registration 1 at host-d:7000');
INSERT INTO public.cluster_events VALUES (15, 1700000001000, 'executor_registered', 'host-l', '', '', '', 'registration 1 at host-l:7000');
INSERT INTO public.cluster_events VALUES (16, 1700000001000, 'executor_registered', 'host-n', '', '', '', 'registration 1 at host-n:7000');
INSERT INTO public.cluster_events VALUES (17, 1700000001000, 'host_policy_set', '', '', '', '', 'the cluster: numa_strategy LeastAllocated, default_bind FullPCPUs');
INSERT INTO public.cluster_events VALUES (18, 1700000001000, 'host_policy_set', 'host-n', '', '', '', 'host-n: alignment BestEffort, reserved_cpus 0, reserved_strict true');
INSERT INTO public.cluster_events VALUES (19, 1700000001000, 'slot_granted', 'host-a', 'ended', 'e-released', '', '');
INSERT INTO public.cluster_events VALUES (20, 1700000001000, 'slot_granted', 'host-a', 'ended', 'e-slot', '', '');
INSERT INTO public.cluster_events VALUES (21, 1700000001000, 'slot_freed', 'host-a', 'ended', 'e-released', '', '');
INSERT INTO public.cluster_events VALUES (22, 1700000001000, 'request_pending', '', 'ended', 'e-cancelled', 'INFEASIBLE_NEVER', '');
INSERT INTO public.cluster_events VALUES (23, 1700000001000, 'request_cancelled', '', 'ended', 'e-cancelled', '', '');
INSERT INTO public.cluster_events VALUES (24, 1700000001000, 'job_ended', '', 'ended', '', 'ENDED', 'ended');
INSERT INTO public.cluster_events VALUES (25, 1700000001000, 'slot_freed', 'host-a', 'ended', 'e-slot', '', '');
INSERT INTO public.cluster_events VALUES (26, 1700000001000, 'slot_granted', 'host-l', 'batch', 'l-lost', '', '');
INSERT INTO public.cluster_events VALUES (27, 1700000001000, 'slot_granted', 'host-l', 'batch', 'l-again', '', '');
INSERT INTO public.cluster_events VALUES (28, 1700000016000, 'executor_lost', 'host-l', '', '', '', 'executor host-l was silent for 15000 ms');
INSERT INTO public.cluster_events VALUES (29, 1700000016000, 'slot_lost', 'host-l', 'batch', 'l-lost', 'EXECUTOR_LOST', 'executor host-l was silent for 15000 ms');
INSERT INTO public.cluster_events VALUES (30, 1700000016000, 'slot_lost', 'host-l', 'batch', 'l-again', 'EXECUTOR_LOST', 'executor host-l was silent for 15000 ms');
INSERT INTO public.cluster_events VALUES (31, 1700000019000, 'slot_granted', 'host-a', 'service', 's-plain', '', '');
INSERT INTO public.cluster_events VALUES (32, 1700000019000, 'slot_granted', 'host-b', 'service', 's-license', '', '');
INSERT INTO public.cluster_events VALUES (33, 1700000019000, 'slot_granted', 'host-n', 'pinned', 'p-lsr', '', '');
INSERT INTO public.cluster_events VALUES (34, 1700000019000, 'slot_granted', 'host-a', 'service', 's-grow', '', '');
INSERT INTO public.cluster_events VALUES (35, 1700000019000, 'slot_granted', 'host-a', 'service', 's-both', '', '');
INSERT INTO public.cluster_events VALUES (36, 1700000019000, 'slot_granted', 'host-a', 'service', 's-use', '', '');
INSERT INTO public.cluster_events VALUES (37, 1700000019000, 'slot_granted', 'host-b', 'defaults', 'd-default', '', '');
INSERT INTO public.cluster_events VALUES (38, 1700000019000, 'slot_granted', 'host-n', 'pinned', 'p-lse', '', '');
INSERT INTO public.cluster_events VALUES (39, 1700000019000, 'slot_granted', 'host-n', 'pinned', 'p-numa', '', '');
INSERT INTO public.cluster_events VALUES (40, 1700000019000, 'slot_granted', 'host-n', 'pinned', 'p-be', '', '');
INSERT INTO public.cluster_events VALUES (41, 1700000022000, 'slot_granted', 'host-d', 'service', 's-drained', '', '');
INSERT INTO public.cluster_events VALUES (42, 1700000022000, 'slot_granted', 'host-d', 'service', 's-freeing', '', '');
INSERT INTO public.cluster_events VALUES (43, 1700000022000, 'executor_drained', 'host-d', '', '', '', 'a-new-disk');
INSERT INTO public.cluster_events VALUES (44, 1700000022000, 'request_pending', '', 'service', 'x-small', 'WAITING_CAPACITY', '');
INSERT INTO public.cluster_events VALUES (45, 1700000023000, 'provision_asked', 'small-1-1', '', '', '', '1 request of 1 cpu, 256Mi, shape=small fits no executor');
INSERT INTO public.cluster_events VALUES (46, 1700000023000, 'provision_started', 'small-1-1', '', '', '', '');
INSERT INTO public.cluster_events VALUES (47, 1700000023000, 'executor_registered', 'small-1-1', '', '', '', 'registration 1 at small-1-1:7000');
INSERT INTO public.cluster_events VALUES (48, 1700000023000, 'slot_granted', 'small-1-1', 'service', 'x-small', '', '');
INSERT INTO public.cluster_events VALUES (49, 1700000023000, 'request_pending', '', 'service', 'x-large', 'WAITING_CAPACITY', '');
INSERT INTO public.cluster_events VALUES (50, 1700000024000, 'provision_asked', 'large-1-2', '', '', '', '1 request of 20 cpu, 256Mi, shape=large fits no executor');
INSERT INTO public.cluster_events VALUES (51, 1700000024000, 'provision_started', 'large-1-2', '', '', '', '');
INSERT INTO public.cluster_events VALUES (52, 1700000024000, 'request_pending', '', 'service', 'x-larger', 'WAITING_CAPACITY', '');
INSERT INTO public.cluster_events VALUES (53, 1700000025000, 'provision_asked', 'large-1-3', '', '', '', '1 request of 20 cpu, 39.1Gi, shape=large fits no executor');
INSERT INTO public.cluster_events VALUES (54, 1700000025000, 'request_pending', '', 'batch', 'many.14', 'WAITING_CAPACITY', '996 members of range many');
INSERT INTO public.cluster_events VALUES (55, 1700000025000, 'slot_granted', 'host-b', 'batch', 'many.10', '', '');
INSERT INTO public.cluster_events VALUES (56, 1700000025000, 'slot_granted', 'host-b', 'batch', 'many.11', '', '');
INSERT INTO public.cluster_events VALUES (57, 1700000025000, 'slot_granted', 'host-b', 'batch', 'many.12', '', '');
INSERT INTO public.cluster_events VALUES (58, 1700000025000, 'slot_granted', 'host-b', 'batch', 'many.13', '', '');
INSERT INTO public.cluster_events VALUES (59, 1700000025000, 'slot_freed', 'host-b', 'batch', 'many.10', '', '');
INSERT INTO public.cluster_events VALUES (60, 1700000025000, 'slot_granted', 'host-b', 'batch', 'many.14', '', '');
INSERT INTO public.cluster_events VALUES (61, 1700000025000, 'request_cancelled', '', 'batch', 'many.900', '', '50 members of range many');
INSERT INTO public.cluster_events VALUES (62, 1700000025000, 'request_cancelled', '', 'batch', 'many.700', '', '');
INSERT INTO public.cluster_events VALUES (63, 1700000025000, 'slot_lost', 'host-b', 'batch', 'many.14', 'SLOT_BROKEN', 'the slot ended on executor host-b: SLOT_BROKEN');
INSERT INTO public.cluster_events VALUES (64, 1700000025000, 'gang_pending', '', 'gangs', 'g1', '', 'gang g-spread of 2, SPREAD');
INSERT INTO public.cluster_events VALUES (65, 1700000025000, 'gang_pending', '', 'gangs', 'h1', '', 'gang g-zone of 2, SAME_LABEL');
INSERT INTO public.cluster_events VALUES (66, 1700000025000, 'slot_granted', 'host-a', 'gangs', 'g1', '', '');
INSERT INTO public.cluster_events VALUES (67, 1700000025000, 'slot_granted', 'host-b', 'gangs', 'g2', '', '');
INSERT INTO public.cluster_events VALUES (68, 1700000025000, 'slot_granted', 'host-a', 'gangs', 'h1', '', '');
INSERT INTO public.cluster_events VALUES (69, 1700000025000, 'slot_granted', 'host-a', 'gangs', 'h2', '', '');
INSERT INTO public.cluster_events VALUES (70, 1700000025000, 'slot_granted', 'host-b', 'batch', 'many.14', '', '');
INSERT INTO public.cluster_events VALUES (71, 1700000025000, 'gang_pending', '', 'gangs', 'w1', '', 'gang g-waits of 3, ANYWHERE');
INSERT INTO public.cluster_events VALUES (72, 1700000025000, 'request_pending', '', 'gangs', 'w1', 'WAITING_GANG', '');
INSERT INTO public.cluster_events VALUES (73, 1700000025000, 'request_pending', '', 'gangs', 'w2', 'WAITING_GANG', '');
INSERT INTO public.cluster_events VALUES (74, 1700000025000, 'request_pending', '', 'gangs', 'w3', 'WAITING_GANG', '');
INSERT INTO public.cluster_events VALUES (75, 1700000025000, 'slot_resize_asked', 'host-a', 'service', 's-use', '', 'change 1 by job service, to cpu_milli 1000, memory_bytes 536870912');
INSERT INTO public.cluster_events VALUES (76, 1700000025000, 'slot_resize_asked', 'host-a', 'service', 's-grow', '', 'change 1 by job service, to cpu_milli 7500, memory_bytes 1073741824');
INSERT INTO public.cluster_events VALUES (77, 1700000025000, 'slot_resize_asked', 'host-a', 'service', 's-both', '', 'change 1 by job service, to cpu_milli 750, memory_bytes 1073741824');
INSERT INTO public.cluster_events VALUES (78, 1700000025000, 'slot_resize_asked', 'host-a', 'service', 's-both', '', 'change 2 by job service, to cpu_milli 800, memory_bytes 1073741824');
INSERT INTO public.cluster_events VALUES (79, 1700000025000, 'request_pending', '', 'service', 'q-whole', 'WAITING_CAPACITY', '');
INSERT INTO public.cluster_events VALUES (80, 1700000025000, 'request_pending', '', 'batch', 'q-never', 'INFEASIBLE_NEVER', '');
INSERT INTO public.cluster_events VALUES (81, 1700000025000, 'gang_pending', '', 'gangs', 'o1', '', 'gang g-ordered of 2, ANYWHERE');


--
-- Data for Name: counters; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.counters VALUES ('groups_delivered', 1);
INSERT INTO public.counters VALUES ('registered_with/host-a', 1);
INSERT INTO public.counters VALUES ('registered_with/host-b', 1);
INSERT INTO public.counters VALUES ('registered_with/host-d', 1);
INSERT INTO public.counters VALUES ('registered_with/host-l', 1);
INSERT INTO public.counters VALUES ('registered_with/host-n', 1);
INSERT INTO public.counters VALUES ('host_setting_number', 2);
INSERT INTO public.counters VALUES ('registered_with/small-1-1', 1);
INSERT INTO public.counters VALUES ('provision_number', 3);
INSERT INTO public.counters VALUES ('cluster_sequence', 81);
INSERT INTO public.counters VALUES ('arrival_number', 1043);


--
-- Data for Name: executors; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.executors VALUES ('host-a', 'instance-of-host-a', 'host-a:7000', '{"cpu_milli":8000,"memory_bytes":17179869184,"extended.license":4}', '{}', '{"cpu_milli":1000,"task_heap_memory_bytes":268435456}', '{"zone":"a"}', 64, '', '{}', '{}', '', '', '', 1, false, '', NULL, 1700000001000, false, '', '{}');
INSERT INTO public.executors VALUES ('host-b', 'instance-of-host-b', 'host-b:7000', '{"cpu_milli":8000,"memory_bytes":17179869184,"extended.license":4}', '{}', '{"cpu_milli":1000,"task_heap_memory_bytes":268435456}', '{"zone":"b"}', 0, '', '{}', '{}', '', '', '', 1, false, '', NULL, 1700000001000, false, '', '{}');
INSERT INTO public.executors VALUES ('host-n', 'instance-of-host-n', 'host-n:7000', '{"cpu_milli":16000,"best_effort_cpu_milli":16000,"memory_bytes":34359738368,"extended.hugepages-2Mi":128}', '{}', '{"cpu_milli":1000,"task_heap_memory_bytes":268435456}', '{}', 0, '', '{"online_cpus": "0-15", "allowed_cpus": "0-15", "cores": [{"cpus": "0,8", "package_index": 0, "numa_node_id": 0}, {"cpus": "1,9", "package_index": 0, "numa_node_id": 0}, {"cpus": "2,10", "package_index": 0, "numa_node_id": 0}, {"cpus": "3,11", "package_index": 0, "numa_node_id": 0}, {"cpus": "4,12", "package_index": 0, "numa_node_id": 1}, {"cpus": "5,13", "package_index": 0, "numa_node_id": 1}, {"cpus": "6,14", "package_index": 0, "numa_node_id": 1}, {"cpus": "7,15", "package_index": 0, "numa_node_id": 1}], "numa_nodes": [{"numa_node_id": 0, "cpus": "0-3,8-11", "memory_bytes": 17179869184, "distances": [10, 12]}, {"numa_node_id": 1, "cpus": "4-7,12-15", "memory_bytes": 17179869184, "distances": [12, 10]}], "memory_bytes": 34359738368}', '{}', '', '', '', 1, false, '', NULL, 1700000001000, false, '', '{"slot_cpus": "0-15", "numa": [{"numa_node_id": 0, "memory_bytes": 17179869184, "default_memory": true, "extended": {"hugepages-2Mi": 64}}, {"numa_node_id": 1, "memory_bytes": 17179869184, "default_memory": true, "extended": {"hugepages-2Mi": 64}}], "isolated_cpus": "7", "policy": {"bind": "FullPCPUsOnly"}}');
INSERT INTO public.executors VALUES ('host-l', 'instance-of-host-l', 'host-l:7000', '{"cpu_milli":4000,"memory_bytes":4294967296}', '{}', '{"cpu_milli":1000,"task_heap_memory_bytes":268435456}', '{"zone":"l"}', 0, '', '{}', '{}', '', '', '', 1, false, '', NULL, 1700000001000, true, '', '{}');
INSERT INTO public.executors VALUES ('host-d', 'instance-of-host-d', 'host-d:7000', '{"cpu_milli":4000,"memory_bytes":4294967296}', '{}', '{"cpu_milli":1000,"task_heap_memory_bytes":268435456}', '{"zone":"d"}', 0, '', '{}', '{}', '', '', '', 1, true, 'a-new-disk', 1700003622000, 1700000001000, false, '', '{}');
INSERT INTO public.executors VALUES ('small-1-1', 'instance-of-small-1-1', 'small-1-1:7000', '{"cpu_milli":4000,"memory_bytes":4294967296}', '{}', '{"cpu_milli":1000,"task_heap_memory_bytes":268435456}', '{"shape":"small"}', 0, '', '{}', '{}', '', '', '', 1, false, '', NULL, 1700000023000, false, 'small', '{}');


--
-- Data for Name: gangs; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.gangs VALUES ('g-spread', 'gangs', 'SPREAD', '', NULL, 1028, 1700000025000);
INSERT INTO public.gangs VALUES ('g-zone', 'gangs', 'SAME_LABEL', 'zone', NULL, 1030, 1700000025000);
INSERT INTO public.gangs VALUES ('g-waits', 'gangs', 'ANYWHERE', '', 3600000, 1032, 1700000025000);
INSERT INTO public.gangs VALUES ('g-ordered', 'gangs', 'ANYWHERE', '', NULL, 1041, 1700000025000);


--
-- Data for Name: groups; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.groups VALUES ('default', '', '1.0', '{}', '{}', 'Priority 10 (Default)', 1700000001000);
INSERT INTO public.groups VALUES ('low', '', '1.0', '{}', '{}', 'Priority 10 (Low)', 1700000001000);
INSERT INTO public.groups VALUES ('medium', '', '4.0', '{}', '{}', 'Priority 20 (Medium)', 1700000001000);
INSERT INTO public.groups VALUES ('high', '', '16.0', '{}', '{}', 'Priority 30 (High)', 1700000001000);
INSERT INTO public.groups VALUES ('critical', '', '64.0', '{}', '{}', 'Priority 40 (Critical)', 1700000001000);
INSERT INTO public.groups VALUES ('research', '', '3.0', '{}', '{}', '', 1700000001000);
INSERT INTO public.groups VALUES ('nightly', 'research', '0.5', '{"cpu_milli":1000}', '{"cpu_milli":6000,"extended.license":4}', '', 1700000001000);


--
-- Data for Name: host_settings; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.host_settings VALUES ('', '{"numa_strategy":"LeastAllocated","default_bind":"FullPCPUs"}', 1, 1700000001000);
INSERT INTO public.host_settings VALUES ('host-n', '{"alignment":"BestEffort","reserved_cpus":"0","reserved_strict":true}', 2, 1700000001000);


--
-- Data for Name: job_events; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.job_events VALUES ('ended', 1, 1700000001000, 'e-released', 'GRANTED', '', '', '{"allocation_id":"e-released","generation":1,"job_id":"ended","profile":{"cpu_milli":500,"task_heap_memory_bytes":67108864},"memory_bytes":67108864,"cpu_limit_milli":500,"state":"ALLOCATED","executor_id":"host-a","executor_address":"host-a:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000001000}', 1);
INSERT INTO public.job_events VALUES ('ended', 2, 1700000001000, 'e-slot', 'GRANTED', '', '', '{"allocation_id":"e-slot","generation":1,"job_id":"ended","profile":{"cpu_milli":500,"task_heap_memory_bytes":67108864},"memory_bytes":67108864,"cpu_limit_milli":500,"state":"ALLOCATED","executor_id":"host-a","executor_address":"host-a:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000001000}', 1);
INSERT INTO public.job_events VALUES ('ended', 3, 1700000001000, 'e-released', 'RELEASED', '', '', '{"allocation_id":"e-released","generation":1,"job_id":"ended","profile":{"cpu_milli":500,"task_heap_memory_bytes":67108864},"memory_bytes":67108864,"cpu_limit_milli":500,"state":"ALLOCATED","executor_id":"host-a","executor_address":"host-a:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000001000}', 1);
INSERT INTO public.job_events VALUES ('ended', 4, 1700000001000, 'e-cancelled', 'CANCELLED', '', '', NULL, 1);
INSERT INTO public.job_events VALUES ('ended', 5, 1700000001000, 'e-slot', 'RELEASED', 'JOB_OVER', 'its job ended: ENDED', '{"allocation_id":"e-slot","generation":1,"job_id":"ended","profile":{"cpu_milli":500,"task_heap_memory_bytes":67108864},"memory_bytes":67108864,"cpu_limit_milli":500,"state":"ALLOCATED","executor_id":"host-a","executor_address":"host-a:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000001000}', 1);
INSERT INTO public.job_events VALUES ('batch', 1, 1700000001000, 'l-lost', 'GRANTED', '', '', '{"allocation_id":"l-lost","generation":1,"job_id":"batch","profile":{"cpu_milli":1000,"task_heap_memory_bytes":268435456},"memory_bytes":268435456,"cpu_limit_milli":1000,"state":"ALLOCATED","executor_id":"host-l","executor_address":"host-l:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000001000}', 1);
INSERT INTO public.job_events VALUES ('batch', 2, 1700000001000, 'l-again', 'GRANTED', '', '', '{"allocation_id":"l-again","generation":1,"job_id":"batch","profile":{"cpu_milli":1000,"task_heap_memory_bytes":268435456},"memory_bytes":268435456,"cpu_limit_milli":1000,"state":"ALLOCATED","executor_id":"host-l","executor_address":"host-l:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000001000}', 1);
INSERT INTO public.job_events VALUES ('batch', 3, 1700000016000, 'l-lost', 'LOST', 'EXECUTOR_LOST', 'executor host-l was silent for 15000 ms', '{"allocation_id":"l-lost","generation":1,"job_id":"batch","profile":{"cpu_milli":1000,"task_heap_memory_bytes":268435456},"memory_bytes":268435456,"cpu_limit_milli":1000,"state":"ALLOCATED","executor_id":"host-l","executor_address":"host-l:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000001000}', 1);
INSERT INTO public.job_events VALUES ('batch', 4, 1700000016000, 'l-again', 'PENDING', 'EXECUTOR_LOST', 'executor host-l was silent for 15000 ms', '{"allocation_id":"l-again","generation":1,"job_id":"batch","profile":{"cpu_milli":1000,"task_heap_memory_bytes":268435456},"memory_bytes":268435456,"cpu_limit_milli":1000,"state":"ALLOCATED","executor_id":"host-l","executor_address":"host-l:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000001000}', 1);
INSERT INTO public.job_events VALUES ('service', 1, 1700000019000, 's-plain', 'GRANTED', '', '', '{"allocation_id":"s-plain","generation":1,"job_id":"service","profile":{"cpu_milli":1500,"task_heap_memory_bytes":536870912},"memory_bytes":536870912,"cpu_limit_milli":3000,"state":"ALLOCATED","executor_id":"host-a","executor_address":"host-a:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000019000}', 1);
INSERT INTO public.job_events VALUES ('service', 2, 1700000019000, 's-license', 'GRANTED', '', '', '{"allocation_id":"s-license","generation":1,"job_id":"service","profile":{"cpu_milli":500,"task_heap_memory_bytes":268435456,"extended":{"license":2}},"memory_bytes":268435456,"cpu_limit_milli":500,"state":"ALLOCATED","executor_id":"host-b","executor_address":"host-b:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000019000}', 1);
INSERT INTO public.job_events VALUES ('pinned', 1, 1700000019000, 'p-lsr', 'GRANTED', '', '', '{"allocation_id":"p-lsr","generation":1,"job_id":"pinned","profile":{"cpu_milli":2000,"task_heap_memory_bytes":67108864},"memory_bytes":67108864,"cpu_limit_milli":2000,"state":"ALLOCATED","executor_id":"host-n","executor_address":"host-n:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000019000,"assignment":{"qos":"LSR","cpus":"4,12","bind":"FullPCPUs","exclusive":"PCPULevel","numa":[{"node":1,"amounts":{"cpu_milli":2000,"memory_bytes":67108864}}],"memory_nodes":"1"}}', 1);
INSERT INTO public.job_events VALUES ('service', 3, 1700000019000, 's-grow', 'GRANTED', '', '', '{"allocation_id":"s-grow","generation":1,"job_id":"service","profile":{"cpu_milli":1000,"task_heap_memory_bytes":1073741824},"memory_bytes":1073741824,"cpu_limit_milli":1000,"state":"ALLOCATED","executor_id":"host-a","executor_address":"host-a:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000019000}', 1);
INSERT INTO public.job_events VALUES ('service', 4, 1700000019000, 's-both', 'GRANTED', '', '', '{"allocation_id":"s-both","generation":1,"job_id":"service","profile":{"cpu_milli":1000,"task_heap_memory_bytes":1073741824},"memory_bytes":1073741824,"cpu_limit_milli":1000,"state":"ALLOCATED","executor_id":"host-a","executor_address":"host-a:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000019000}', 1);
INSERT INTO public.job_events VALUES ('service', 5, 1700000019000, 's-use', 'GRANTED', '', '', '{"allocation_id":"s-use","generation":1,"job_id":"service","profile":{"cpu_milli":1000,"task_heap_memory_bytes":1073741824},"memory_bytes":1073741824,"cpu_limit_milli":1000,"state":"ALLOCATED","executor_id":"host-a","executor_address":"host-a:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000019000}', 1);
INSERT INTO public.job_events VALUES ('defaults', 1, 1700000019000, 'd-default', 'GRANTED', '', '', '{"allocation_id":"d-default","generation":1,"job_id":"defaults","profile":{"cpu_milli":1000,"task_heap_memory_bytes":268435456},"memory_bytes":268435456,"cpu_limit_milli":1000,"state":"ALLOCATED","executor_id":"host-b","executor_address":"host-b:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000019000}', 1);
INSERT INTO public.job_events VALUES ('pinned', 2, 1700000019000, 'p-lse', 'GRANTED', '', '', '{"allocation_id":"p-lse","generation":1,"job_id":"pinned","profile":{"cpu_milli":2000,"task_heap_memory_bytes":67108864},"memory_bytes":67108864,"cpu_limit_milli":2000,"state":"ALLOCATED","executor_id":"host-n","executor_address":"host-n:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000019000,"assignment":{"qos":"LSE","cpus":"1,9","bind":"FullPCPUs","numa":[{"node":0,"amounts":{"cpu_milli":2000,"memory_bytes":67108864}}],"memory_nodes":"0"}}', 1);
INSERT INTO public.job_events VALUES ('pinned', 3, 1700000019000, 'p-numa', 'GRANTED', '', '', '{"allocation_id":"p-numa","generation":1,"job_id":"pinned","profile":{"cpu_milli":500,"task_heap_memory_bytes":67108864,"extended":{"hugepages-2Mi":4}},"memory_bytes":67108864,"cpu_limit_milli":500,"state":"ALLOCATED","executor_id":"host-n","executor_address":"host-n:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000019000,"assignment":{"qos":"LS","numa":[{"node":0,"amounts":{"cpu_milli":500,"extended.hugepages-2Mi":4,"memory_bytes":67108864}}],"memory_nodes":"0","pools":[[0,0]]}}', 1);
INSERT INTO public.job_events VALUES ('pinned', 4, 1700000019000, 'p-be', 'GRANTED', '', '', '{"allocation_id":"p-be","generation":1,"job_id":"pinned","profile":{"cpu_milli":500,"task_heap_memory_bytes":67108864},"memory_bytes":67108864,"cpu_limit_milli":500,"state":"ALLOCATED","executor_id":"host-n","executor_address":"host-n:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000019000,"assignment":{"qos":"BE","numa":[{"node":1,"amounts":{"best_effort_cpu_milli":500,"memory_bytes":67108864}}],"memory_nodes":"1","pools":[[0,1]]}}', 1);
INSERT INTO public.job_events VALUES ('service', 6, 1700000022000, 's-drained', 'GRANTED', '', '', '{"allocation_id":"s-drained","generation":1,"job_id":"service","profile":{"cpu_milli":500,"task_heap_memory_bytes":67108864},"memory_bytes":67108864,"cpu_limit_milli":500,"state":"ALLOCATED","executor_id":"host-d","executor_address":"host-d:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000022000}', 1);
INSERT INTO public.job_events VALUES ('service', 7, 1700000022000, 's-freeing', 'GRANTED', '', '', '{"allocation_id":"s-freeing","generation":1,"job_id":"service","profile":{"cpu_milli":500,"task_heap_memory_bytes":67108864},"memory_bytes":67108864,"cpu_limit_milli":500,"state":"ALLOCATED","executor_id":"host-d","executor_address":"host-d:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000022000}', 1);
INSERT INTO public.job_events VALUES ('service', 8, 1700000022000, 's-freeing', 'RELEASED', '', '', '{"allocation_id":"s-freeing","generation":1,"job_id":"service","profile":{"cpu_milli":500,"task_heap_memory_bytes":67108864},"memory_bytes":67108864,"cpu_limit_milli":500,"state":"ALLOCATED","executor_id":"host-d","executor_address":"host-d:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000022000}', 1);
INSERT INTO public.job_events VALUES ('service', 9, 1700000023000, 'x-small', 'GRANTED', '', '', '{"allocation_id":"x-small","generation":1,"job_id":"service","profile":{"cpu_milli":1000,"task_heap_memory_bytes":268435456},"memory_bytes":268435456,"cpu_limit_milli":1000,"state":"ALLOCATED","executor_id":"small-1-1","executor_address":"small-1-1:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000023000}', 1);
INSERT INTO public.job_events VALUES ('batch', 5, 1700000025000, 'many.10', 'GRANTED', '', '', '{"allocation_id":"many.10","generation":1,"job_id":"batch","profile":{"cpu_milli":1000,"task_heap_memory_bytes":134217728},"memory_bytes":134217728,"cpu_limit_milli":1000,"state":"ALLOCATED","executor_id":"host-b","executor_address":"host-b:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000025000}', 1);
INSERT INTO public.job_events VALUES ('batch', 6, 1700000025000, 'many.11', 'GRANTED', '', '', '{"allocation_id":"many.11","generation":1,"job_id":"batch","profile":{"cpu_milli":1000,"task_heap_memory_bytes":134217728},"memory_bytes":134217728,"cpu_limit_milli":1000,"state":"ALLOCATED","executor_id":"host-b","executor_address":"host-b:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000025000}', 1);
INSERT INTO public.job_events VALUES ('batch', 7, 1700000025000, 'many.12', 'GRANTED', '', '', '{"allocation_id":"many.12","generation":1,"job_id":"batch","profile":{"cpu_milli":1000,"task_heap_memory_bytes":134217728},"memory_bytes":134217728,"cpu_limit_milli":1000,"state":"ALLOCATED","executor_id":"host-b","executor_address":"host-b:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000025000}', 1);
INSERT INTO public.job_events VALUES ('batch', 8, 1700000025000, 'many.13', 'GRANTED', '', '', '{"allocation_id":"many.13","generation":1,"job_id":"batch","profile":{"cpu_milli":1000,"task_heap_memory_bytes":134217728},"memory_bytes":134217728,"cpu_limit_milli":1000,"state":"ALLOCATED","executor_id":"host-b","executor_address":"host-b:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000025000}', 1);
INSERT INTO public.job_events VALUES ('batch', 9, 1700000025000, 'many.10', 'RELEASED', '', '', '{"allocation_id":"many.10","generation":1,"job_id":"batch","profile":{"cpu_milli":1000,"task_heap_memory_bytes":134217728},"memory_bytes":134217728,"cpu_limit_milli":1000,"state":"ALLOCATED","executor_id":"host-b","executor_address":"host-b:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000025000}', 1);
INSERT INTO public.job_events VALUES ('batch', 10, 1700000025000, 'many.14', 'GRANTED', '', '', '{"allocation_id":"many.14","generation":1,"job_id":"batch","profile":{"cpu_milli":1000,"task_heap_memory_bytes":134217728},"memory_bytes":134217728,"cpu_limit_milli":1000,"state":"ALLOCATED","executor_id":"host-b","executor_address":"host-b:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000025000}', 1);
INSERT INTO public.job_events VALUES ('batch', 11, 1700000025000, 'many.900', 'CANCELLED', '', '', NULL, 50);
INSERT INTO public.job_events VALUES ('batch', 12, 1700000025000, 'many.700', 'CANCELLED', '', '', NULL, 1);
INSERT INTO public.job_events VALUES ('batch', 13, 1700000025000, 'many.14', 'PENDING', 'SLOT_BROKEN', 'the slot ended on executor host-b: SLOT_BROKEN', '{"allocation_id":"many.14","generation":1,"job_id":"batch","profile":{"cpu_milli":1000,"task_heap_memory_bytes":134217728},"memory_bytes":134217728,"cpu_limit_milli":1000,"state":"ALLOCATED","executor_id":"host-b","executor_address":"host-b:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000025000}', 1);
INSERT INTO public.job_events VALUES ('gangs', 1, 1700000025000, 'g1', 'GRANTED', '', '', '{"allocation_id":"g1","generation":1,"job_id":"gangs","profile":{"cpu_milli":250,"task_heap_memory_bytes":67108864},"memory_bytes":67108864,"cpu_limit_milli":250,"state":"ALLOCATED","executor_id":"host-a","executor_address":"host-a:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000025000}', 1);
INSERT INTO public.job_events VALUES ('gangs', 2, 1700000025000, 'g2', 'GRANTED', '', '', '{"allocation_id":"g2","generation":1,"job_id":"gangs","profile":{"cpu_milli":250,"task_heap_memory_bytes":67108864},"memory_bytes":67108864,"cpu_limit_milli":250,"state":"ALLOCATED","executor_id":"host-b","executor_address":"host-b:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000025000}', 1);
INSERT INTO public.job_events VALUES ('gangs', 3, 1700000025000, 'h1', 'GRANTED', '', '', '{"allocation_id":"h1","generation":1,"job_id":"gangs","profile":{"cpu_milli":250,"task_heap_memory_bytes":67108864},"memory_bytes":67108864,"cpu_limit_milli":250,"state":"ALLOCATED","executor_id":"host-a","executor_address":"host-a:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000025000}', 1);
INSERT INTO public.job_events VALUES ('gangs', 4, 1700000025000, 'h2', 'GRANTED', '', '', '{"allocation_id":"h2","generation":1,"job_id":"gangs","profile":{"cpu_milli":250,"task_heap_memory_bytes":67108864},"memory_bytes":67108864,"cpu_limit_milli":250,"state":"ALLOCATED","executor_id":"host-a","executor_address":"host-a:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000025000}', 1);
INSERT INTO public.job_events VALUES ('batch', 14, 1700000025000, 'many.14', 'GRANTED', '', '', '{"allocation_id":"many.14","generation":2,"job_id":"batch","profile":{"cpu_milli":1000,"task_heap_memory_bytes":134217728},"memory_bytes":134217728,"cpu_limit_milli":1000,"state":"ALLOCATED","executor_id":"host-b","executor_address":"host-b:7000","isolation":{"driver":"none"},"allocated_time_ms":1700000025000}', 1);


--
-- Data for Name: jobs; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.jobs VALUES ('empty', 'empty', 'default', 30000, 's', 'r', 7, 1700000001000, 'ACTIVE', '', NULL, 0, 0, NULL, '');
INSERT INTO public.jobs VALUES ('ended', 'ended', 'default', 30000, 's', 'r', 6, 1700000001000, 'ENDED', 'ENDED', 1700000001000, 5, 0, true, 'e-released');
INSERT INTO public.jobs VALUES ('defaults', 'defaults', 'default', 30000, 's', 'r', 5, 1700000001000, 'ACTIVE', '', NULL, 1, 0, false, 'd-default');
INSERT INTO public.jobs VALUES ('pinned', 'pinned', 'default', 30000, 's', 'r', 4, 1700000001000, 'ACTIVE', '', NULL, 4, 0, true, 'p-lsr');
INSERT INTO public.jobs VALUES ('service', 'service', 'research', NULL, 's', 'r', 2, 1700000001000, 'ACTIVE', '', NULL, 9, 0, true, 's-plain');
INSERT INTO public.jobs VALUES ('gangs', 'gangs', 'default', 600000, 's', 'r', 3, 1700000001000, 'ACTIVE', '', NULL, 4, 0, true, 'g1');
INSERT INTO public.jobs VALUES ('batch', 'batch', 'nightly', 60000, 's', 'r', 1, 1700000001000, 'ACTIVE', '', NULL, 14, 0, true, 'l-lost');


--
-- Data for Name: leadership; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.leadership VALUES (1, 'rm.example:7070 [324a4bd900e6ceda]', 1, 0, 'rm.example:7070');


--
-- Data for Name: meta; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.meta VALUES ('application', 'finegrain');
INSERT INTO public.meta VALUES ('cluster_id', '35237d7d-cbb1-40aa-baee-f79127d12b03');
INSERT INTO public.meta VALUES ('cluster_salt', '946cad99b152540d3dbb49c2af01afdccb0bac01a249428b0d76d2fe7c50794e');
INSERT INTO public.meta VALUES ('create_time_ms', '1795380238803');


--
-- Data for Name: provisions; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.provisions VALUES ('small-1-1', 'small', 1, '1 request of 1 cpu, 256Mi, shape=small fits no executor', 1700000023000, 'REGISTERED', '4711', 'registered');
INSERT INTO public.provisions VALUES ('large-1-2', 'large', 2, '1 request of 20 cpu, 256Mi, shape=large fits no executor', 1700000024000, 'STARTED', '4712', '');
INSERT INTO public.provisions VALUES ('large-1-3', 'large', 3, '1 request of 20 cpu, 39.1Gi, shape=large fits no executor', 1700000025000, 'ASKED', '', '');


--
-- Data for Name: request_ranges; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.request_ranges VALUES ('many', 10, 1000, 'batch', 28, 1700000025000, '{"cpu_milli":1000,"task_heap_memory_bytes":134217728}', 0, 0, '{"zone":"b"}', false, true, '[["RELEASED","","",[10,11]],["CANCELLED","","",[700,701,900,950]]]', '');


--
-- Data for Name: requests; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.requests VALUES ('e-released', 'ended', 8, 1700000001000, 'RELEASED', '', '', 1, 1700000001000, '{"cpu_milli":500,"task_heap_memory_bytes":67108864}', 0, 0, '{"zone":"a"}', '', false, false, '', '');
INSERT INTO public.requests VALUES ('e-cancelled', 'ended', 10, 1700000001000, 'CANCELLED', '', '', 0, 1700000001000, '{"cpu_milli":100000,"task_heap_memory_bytes":67108864}', 0, 0, '{}', '', true, false, '', '');
INSERT INTO public.requests VALUES ('e-slot', 'ended', 9, 1700000001000, 'RELEASED', 'JOB_OVER', 'its job ended: ENDED', 1, 1700000001000, '{"cpu_milli":500,"task_heap_memory_bytes":67108864}', 0, 0, '{"zone":"a"}', '', false, false, '', '');
INSERT INTO public.requests VALUES ('l-lost', 'batch', 11, 1700000001000, 'LOST', 'EXECUTOR_LOST', 'executor host-l was silent for 15000 ms', 1, 1700000016000, '{"cpu_milli":1000,"task_heap_memory_bytes":268435456}', 0, 0, '{"zone":"l"}', '', false, false, '', '');
INSERT INTO public.requests VALUES ('l-again', 'batch', 12, 1700000001000, 'PENDING', '', '', 1, NULL, '{"cpu_milli":1000,"task_heap_memory_bytes":268435456}', 0, 0, '{"zone":"l"}', '', false, true, '', '');
INSERT INTO public.requests VALUES ('s-plain', 'service', 13, 1700000019000, 'ALLOCATING', '', '', 1, NULL, '{"cpu_milli":1500,"task_heap_memory_bytes":536870912}', 3000, 0, '{"zone":"a"}', '', false, false, '', '');
INSERT INTO public.requests VALUES ('s-license', 'service', 14, 1700000019000, 'ALLOCATING', '', '', 1, NULL, '{"cpu_milli":500,"task_heap_memory_bytes":268435456,"extended":{"license":2}}', 0, 0, '{"zone":"b"}', '', false, false, '', '');
INSERT INTO public.requests VALUES ('s-grow', 'service', 15, 1700000019000, 'ALLOCATING', '', '', 1, NULL, '{"cpu_milli":1000,"task_heap_memory_bytes":1073741824}', 0, 0, '{"zone":"a"}', '', false, false, '', '');
INSERT INTO public.requests VALUES ('s-both', 'service', 16, 1700000019000, 'ALLOCATING', '', '', 1, NULL, '{"cpu_milli":1000,"task_heap_memory_bytes":1073741824}', 0, 0, '{"zone":"a"}', '', false, false, '', '');
INSERT INTO public.requests VALUES ('s-use', 'service', 17, 1700000019000, 'ALLOCATING', '', '', 1, NULL, '{"cpu_milli":1000,"task_heap_memory_bytes":1073741824}', 0, 0, '{"zone":"a"}', '', false, false, '', '');
INSERT INTO public.requests VALUES ('d-default', 'defaults', 18, 1700000019000, 'ALLOCATING', '', '', 1, NULL, NULL, 0, 0, '{"zone":"b"}', '', false, false, '', '');
INSERT INTO public.requests VALUES ('p-lsr', 'pinned', 19, 1700000019000, 'ALLOCATING', '', '', 1, NULL, '{"cpu_milli":2000,"task_heap_memory_bytes":67108864}', 0, 0, '{}', '', false, false, '', '{"qos":"LSR","bind":"FullPCPUs","bind_required":true,"exclusive":"PCPULevel"}');
INSERT INTO public.requests VALUES ('p-lse', 'pinned', 20, 1700000019000, 'ALLOCATING', '', '', 1, NULL, '{"cpu_milli":2000,"task_heap_memory_bytes":67108864}', 0, 0, '{}', '', false, false, '', '{"qos":"LSE"}');
INSERT INTO public.requests VALUES ('p-numa', 'pinned', 21, 1700000019000, 'ALLOCATING', '', '', 1, NULL, '{"cpu_milli":500,"task_heap_memory_bytes":67108864,"extended":{"hugepages-2Mi":4}}', 0, 0, '{}', '', false, false, '', '{"numa":"SingleNUMANode","numa_required":true}');
INSERT INTO public.requests VALUES ('p-be', 'pinned', 22, 1700000019000, 'ALLOCATING', '', '', 1, NULL, '{"cpu_milli":500,"task_heap_memory_bytes":67108864}', 0, 0, '{}', '', false, false, '', '{"qos":"BE"}');
INSERT INTO public.requests VALUES ('s-drained', 'service', 23, 1700000022000, 'ALLOCATING', '', '', 1, NULL, '{"cpu_milli":500,"task_heap_memory_bytes":67108864}', 0, 0, '{"zone":"d"}', '', false, false, '', '');
INSERT INTO public.requests VALUES ('s-freeing', 'service', 24, 1700000022000, 'RELEASED', '', '', 1, 1700000022000, '{"cpu_milli":500,"task_heap_memory_bytes":67108864}', 0, 0, '{"zone":"d"}', '', false, false, '', '');
INSERT INTO public.requests VALUES ('x-small', 'service', 25, 1700000022000, 'PENDING', '', '', 0, NULL, '{"cpu_milli":1000,"task_heap_memory_bytes":268435456}', 0, 0, '{"shape":"small"}', '', false, false, '', '');
INSERT INTO public.requests VALUES ('x-large', 'service', 26, 1700000023000, 'PENDING', '', '', 0, NULL, '{"cpu_milli":20000,"task_heap_memory_bytes":268435456}', 0, 0, '{"shape":"large"}', '', false, false, '', '');
INSERT INTO public.requests VALUES ('x-larger', 'service', 27, 1700000024000, 'PENDING', '', '', 0, NULL, '{"cpu_milli":20000,"task_heap_memory_bytes":41943040000}', 0, 0, '{"shape":"large"}', '', false, false, '', '');
INSERT INTO public.requests VALUES ('many.14', 'batch', 32, 1700000025000, 'PENDING', '', '', 1, NULL, '{"cpu_milli":1000,"task_heap_memory_bytes":134217728}', 0, 0, '{"zone":"b"}', '', false, true, '', '');
INSERT INTO public.requests VALUES ('g1', 'gangs', 1028, 1700000025000, 'ALLOCATING', '', '', 1, NULL, '{"cpu_milli":250,"task_heap_memory_bytes":67108864}', 0, 0, '{}', '', true, false, 'g-spread', '');
INSERT INTO public.requests VALUES ('g2', 'gangs', 1029, 1700000025000, 'ALLOCATING', '', '', 1, NULL, '{"cpu_milli":250,"task_heap_memory_bytes":67108864}', 0, 0, '{}', '', true, false, 'g-spread', '');
INSERT INTO public.requests VALUES ('h1', 'gangs', 1030, 1700000025000, 'ALLOCATING', '', '', 1, NULL, '{"cpu_milli":250,"task_heap_memory_bytes":67108864}', 0, 0, '{}', '', false, false, 'g-zone', '');
INSERT INTO public.requests VALUES ('h2', 'gangs', 1031, 1700000025000, 'ALLOCATING', '', '', 1, NULL, '{"cpu_milli":250,"task_heap_memory_bytes":67108864}', 0, 0, '{}', '', false, false, 'g-zone', '');
INSERT INTO public.requests VALUES ('w1', 'gangs', 1032, 1700000025000, 'PENDING', '', '', 0, NULL, '{"cpu_milli":5000,"task_heap_memory_bytes":67108864}', 0, 0, '{}', '', true, true, 'g-waits', '');
INSERT INTO public.requests VALUES ('w2', 'gangs', 1033, 1700000025000, 'PENDING', '', '', 0, NULL, '{"cpu_milli":7000,"task_heap_memory_bytes":67108864}', 0, 0, '{}', '', true, true, 'g-waits', '');
INSERT INTO public.requests VALUES ('w3', 'gangs', 1034, 1700000025000, 'PENDING', '', '', 0, NULL, '{"cpu_milli":5000,"task_heap_memory_bytes":67108864}', 0, 0, '{}', '', true, true, 'g-waits', '');
INSERT INTO public.requests VALUES ('q-whole', 'service', 1039, 1700000025000, 'PENDING', '', '', 0, NULL, '{"cpu_milli":8000,"task_heap_memory_bytes":134217728}', 0, 0, '{"zone":"b"}', '', true, false, '', '');
INSERT INTO public.requests VALUES ('q-never', 'batch', 1040, 1700000025000, 'PENDING', '', '', 0, NULL, '{"cpu_milli":500000,"task_heap_memory_bytes":134217728}', 0, 0, '{}', '', true, false, '', '');
INSERT INTO public.requests VALUES ('o1', 'gangs', 1041, 1700000025000, 'ALLOCATING', '', '', 1, NULL, '{"cpu_milli":100,"task_heap_memory_bytes":67108864}', 0, 0, '{}', '', false, false, 'g-ordered', '');
INSERT INTO public.requests VALUES ('o2', 'gangs', 1042, 1700000025000, 'ALLOCATING', '', '', 1, NULL, '{"cpu_milli":100,"task_heap_memory_bytes":67108864}', 0, 0, '{}', '', false, false, 'g-ordered', '');
INSERT INTO public.requests VALUES ('s-ordered', 'service', 1043, 1700000025000, 'ALLOCATING', '', '', 1, NULL, '{"cpu_milli":100,"task_heap_memory_bytes":67108864}', 0, 0, '{"zone":"a"}', '', false, false, '', '');


--
-- Data for Name: slots; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.slots VALUES ('s-use', 1, 'service', 'host-a', '{"cpu_milli":1000,"task_heap_memory_bytes":1073741824}', 1000, 0, '', 'ALLOCATED', 1700000019000, '{"driver":"none"}', 1, NULL, '{"number":1,"profile":{"cpu_milli":1000,"task_heap_memory_bytes":536870912},"cpu_limit_milli":1000,"wait_for_use":true,"arrival_number":1035}', NULL);
INSERT INTO public.slots VALUES ('many.11', 1, 'batch', 'host-b', '{"cpu_milli":1000,"task_heap_memory_bytes":134217728}', 1000, 0, '', 'ALLOCATED', 1700000025000, '{"driver":"none"}', 0, NULL, NULL, NULL);
INSERT INTO public.slots VALUES ('l-lost', 1, 'batch', 'host-l', '{"cpu_milli":1000,"task_heap_memory_bytes":268435456}', 1000, 0, '', 'ALLOCATED', 1700000001000, '{"driver":"none"}', 0, NULL, NULL, NULL);
INSERT INTO public.slots VALUES ('l-again', 1, 'batch', 'host-l', '{"cpu_milli":1000,"task_heap_memory_bytes":268435456}', 1000, 0, '', 'ALLOCATED', 1700000001000, '{"driver":"none"}', 0, NULL, NULL, NULL);
INSERT INTO public.slots VALUES ('s-plain', 1, 'service', 'host-a', '{"cpu_milli":1500,"task_heap_memory_bytes":536870912}', 3000, 0, '', 'ALLOCATED', 1700000019000, '{"driver":"none"}', 0, NULL, NULL, NULL);
INSERT INTO public.slots VALUES ('s-license', 1, 'service', 'host-b', '{"cpu_milli":500,"task_heap_memory_bytes":268435456,"extended":{"license":2}}', 500, 0, '', 'ALLOCATED', 1700000019000, '{"driver":"none"}', 0, NULL, NULL, NULL);
INSERT INTO public.slots VALUES ('p-lsr', 1, 'pinned', 'host-n', '{"cpu_milli":2000,"task_heap_memory_bytes":67108864}', 2000, 0, '', 'ALLOCATED', 1700000019000, '{"driver":"none"}', 0, NULL, NULL, '{"qos":"LSR","cpus":"4,12","bind":"FullPCPUs","exclusive":"PCPULevel","numa":[{"node":1,"amounts":{"cpu_milli":2000,"memory_bytes":67108864}}],"memory_nodes":"1"}');
INSERT INTO public.slots VALUES ('s-grow', 1, 'service', 'host-a', '{"cpu_milli":1000,"task_heap_memory_bytes":1073741824}', 1000, 0, '', 'ALLOCATED', 1700000019000, '{"driver":"none"}', 1, NULL, '{"number":1,"profile":{"cpu_milli":7500,"task_heap_memory_bytes":1073741824},"cpu_limit_milli":7500,"wait_for_use":false,"arrival_number":1036}', NULL);
INSERT INTO public.slots VALUES ('d-default', 1, 'defaults', 'host-b', '{"cpu_milli":1000,"task_heap_memory_bytes":268435456}', 1000, 0, '', 'ALLOCATED', 1700000019000, '{"driver":"none"}', 0, NULL, NULL, NULL);
INSERT INTO public.slots VALUES ('p-lse', 1, 'pinned', 'host-n', '{"cpu_milli":2000,"task_heap_memory_bytes":67108864}', 2000, 0, '', 'ALLOCATED', 1700000019000, '{"driver":"none"}', 0, NULL, NULL, '{"qos":"LSE","cpus":"1,9","bind":"FullPCPUs","numa":[{"node":0,"amounts":{"cpu_milli":2000,"memory_bytes":67108864}}],"memory_nodes":"0"}');
INSERT INTO public.slots VALUES ('p-numa', 1, 'pinned', 'host-n', '{"cpu_milli":500,"task_heap_memory_bytes":67108864,"extended":{"hugepages-2Mi":4}}', 500, 0, '', 'ALLOCATED', 1700000019000, '{"driver":"none"}', 0, NULL, NULL, '{"qos":"LS","numa":[{"node":0,"amounts":{"cpu_milli":500,"extended.hugepages-2Mi":4,"memory_bytes":67108864}}],"memory_nodes":"0","pools":[[0,0]]}');
INSERT INTO public.slots VALUES ('p-be', 1, 'pinned', 'host-n', '{"cpu_milli":500,"task_heap_memory_bytes":67108864}', 500, 0, '', 'ALLOCATED', 1700000019000, '{"driver":"none"}', 0, NULL, NULL, '{"qos":"BE","numa":[{"node":1,"amounts":{"best_effort_cpu_milli":500,"memory_bytes":67108864}}],"memory_nodes":"1","pools":[[0,1]]}');
INSERT INTO public.slots VALUES ('s-drained', 1, 'service', 'host-d', '{"cpu_milli":500,"task_heap_memory_bytes":67108864}', 500, 0, '', 'ALLOCATED', 1700000022000, '{"driver":"none"}', 0, NULL, NULL, NULL);
INSERT INTO public.slots VALUES ('s-freeing', 1, 'service', 'host-d', '{"cpu_milli":500,"task_heap_memory_bytes":67108864}', 500, 0, '', 'ALLOCATED', 1700000022000, '{"driver":"none"}', 0, NULL, NULL, NULL);
INSERT INTO public.slots VALUES ('x-small', 1, 'service', 'small-1-1', '{"cpu_milli":1000,"task_heap_memory_bytes":268435456}', 1000, 0, '', 'ALLOCATED', 1700000023000, '{"driver":"none"}', 0, NULL, NULL, NULL);
INSERT INTO public.slots VALUES ('many.12', 1, 'batch', 'host-b', '{"cpu_milli":1000,"task_heap_memory_bytes":134217728}', 1000, 0, '', 'ALLOCATED', 1700000025000, '{"driver":"none"}', 0, NULL, NULL, NULL);
INSERT INTO public.slots VALUES ('many.13', 1, 'batch', 'host-b', '{"cpu_milli":1000,"task_heap_memory_bytes":134217728}', 1000, 0, '', 'ALLOCATED', 1700000025000, '{"driver":"none"}', 0, NULL, NULL, NULL);
INSERT INTO public.slots VALUES ('g1', 1, 'gangs', 'host-a', '{"cpu_milli":250,"task_heap_memory_bytes":67108864}', 250, 0, '', 'ALLOCATED', 1700000025000, '{"driver":"none"}', 0, NULL, NULL, NULL);
INSERT INTO public.slots VALUES ('g2', 1, 'gangs', 'host-b', '{"cpu_milli":250,"task_heap_memory_bytes":67108864}', 250, 0, '', 'ALLOCATED', 1700000025000, '{"driver":"none"}', 0, NULL, NULL, NULL);
INSERT INTO public.slots VALUES ('h1', 1, 'gangs', 'host-a', '{"cpu_milli":250,"task_heap_memory_bytes":67108864}', 250, 0, '', 'ALLOCATED', 1700000025000, '{"driver":"none"}', 0, NULL, NULL, NULL);
INSERT INTO public.slots VALUES ('h2', 1, 'gangs', 'host-a', '{"cpu_milli":250,"task_heap_memory_bytes":67108864}', 250, 0, '', 'ALLOCATED', 1700000025000, '{"driver":"none"}', 0, NULL, NULL, NULL);
INSERT INTO public.slots VALUES ('many.14', 2, 'batch', 'host-b', '{"cpu_milli":1000,"task_heap_memory_bytes":134217728}', 1000, 0, '', 'ALLOCATED', 1700000025000, '{"driver":"none"}', 0, NULL, NULL, NULL);
INSERT INTO public.slots VALUES ('s-both', 1, 'service', 'host-a', '{"cpu_milli":1000,"task_heap_memory_bytes":1073741824}', 1000, 0, '', 'ALLOCATED', 1700000019000, '{"driver":"none"}', 2, '{"number":1,"profile":{"cpu_milli":750,"task_heap_memory_bytes":1073741824},"cpu_limit_milli":750,"wait_for_use":false,"arrival_number":1037}', '{"number":2,"profile":{"cpu_milli":800,"task_heap_memory_bytes":1073741824},"cpu_limit_milli":800,"wait_for_use":false,"arrival_number":1038}', NULL);
INSERT INTO public.slots VALUES ('o1', 1, 'gangs', 'host-a', '{"cpu_milli":100,"task_heap_memory_bytes":67108864}', 100, 0, '', 'PENDING', NULL, NULL, 0, NULL, NULL, NULL);
INSERT INTO public.slots VALUES ('o2', 1, 'gangs', 'host-a', '{"cpu_milli":100,"task_heap_memory_bytes":67108864}', 100, 0, '', 'PENDING', NULL, NULL, 0, NULL, NULL, NULL);
INSERT INTO public.slots VALUES ('s-ordered', 1, 'service', 'host-a', '{"cpu_milli":100,"task_heap_memory_bytes":67108864}', 100, 0, '', 'PENDING', NULL, NULL, 0, NULL, NULL, NULL);


--
-- Data for Name: tallies; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.tallies VALUES ('job/ended', 'dominant', '0.0', '0.0', 1700000001000, '[1,0,0,0,0,[0,1]]');
INSERT INTO public.tallies VALUES ('group/critical', 'dominant', '0.0', '0.0', 1700000004000, '');
INSERT INTO public.tallies VALUES ('group/high', 'dominant', '0.0', '0.0', 1700000004000, '');
INSERT INTO public.tallies VALUES ('group/low', 'dominant', '0.0', '0.0', 1700000004000, '');
INSERT INTO public.tallies VALUES ('group/medium', 'dominant', '0.0', '0.0', 1700000004000, '');
INSERT INTO public.tallies VALUES ('job/service', 'dominant', '2.385483049352659', '1.559018201256405', 1700000025000, '[1,0,0,0,0,[0,1]]');
INSERT INTO public.tallies VALUES ('group/research', 'dominant', '3.1649921499808613', '0.0', 1700000025000, '');
INSERT INTO public.tallies VALUES ('root', 'dominant', '4.446168380013102', '0.0', 1700000025000, '');
INSERT INTO public.tallies VALUES ('group/default', 'dominant', '1.2811762300322405', '0.2598363668760675', 1700000025000, '');
INSERT INTO public.tallies VALUES ('job/defaults', 'dominant', '0.17606348192051835', '0.0', 1700000025000, '');
INSERT INTO public.tallies VALUES ('job/pinned', 'dominant', '1.105112748111722', '0.0', 1700000025000, '');
INSERT INTO public.tallies VALUES ('job/batch', 'dominant', '0.7795091006282024', '0.0', 1700000025000, '');
INSERT INTO public.tallies VALUES ('group/nightly', 'dominant', '0.7795091006282024', '0.0', 1700000025000, '');
INSERT INTO public.tallies VALUES ('job/gangs', 'dominant', '0.0', '0.0', 1700000025000, '');


--
-- Name: alembic_version alembic_version_pkc; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);


--
-- Name: cluster_events pk_cluster_events; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.cluster_events
    ADD CONSTRAINT pk_cluster_events PRIMARY KEY (sequence);


--
-- Name: counters pk_counters; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.counters
    ADD CONSTRAINT pk_counters PRIMARY KEY (name);


--
-- Name: executors pk_executors; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.executors
    ADD CONSTRAINT pk_executors PRIMARY KEY (executor_id);


--
-- Name: gangs pk_gangs; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.gangs
    ADD CONSTRAINT pk_gangs PRIMARY KEY (gang_id);


--
-- Name: groups pk_groups; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.groups
    ADD CONSTRAINT pk_groups PRIMARY KEY (name);


--
-- Name: host_settings pk_host_settings; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.host_settings
    ADD CONSTRAINT pk_host_settings PRIMARY KEY (executor_id);


--
-- Name: job_events pk_job_events; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.job_events
    ADD CONSTRAINT pk_job_events PRIMARY KEY (job_id, sequence);


--
-- Name: jobs pk_jobs; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT pk_jobs PRIMARY KEY (job_id);


--
-- Name: leadership pk_leadership; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.leadership
    ADD CONSTRAINT pk_leadership PRIMARY KEY (id);


--
-- Name: meta pk_meta; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.meta
    ADD CONSTRAINT pk_meta PRIMARY KEY (key);


--
-- Name: provisions pk_provisions; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.provisions
    ADD CONSTRAINT pk_provisions PRIMARY KEY (executor_id);


--
-- Name: request_ranges pk_request_ranges; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.request_ranges
    ADD CONSTRAINT pk_request_ranges PRIMARY KEY (range_id, first_index);


--
-- Name: requests pk_requests; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.requests
    ADD CONSTRAINT pk_requests PRIMARY KEY (allocation_id);


--
-- Name: slots pk_slots; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.slots
    ADD CONSTRAINT pk_slots PRIMARY KEY (allocation_id, generation);


--
-- Name: tallies pk_tallies; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.tallies
    ADD CONSTRAINT pk_tallies PRIMARY KEY (flow_id);


--
-- Name: ix_cluster_events_allocation_id; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_cluster_events_allocation_id ON public.cluster_events USING btree (allocation_id, sequence) WHERE (allocation_id <> ''::text);


--
-- Name: ix_cluster_events_executor_id; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_cluster_events_executor_id ON public.cluster_events USING btree (executor_id, sequence) WHERE (executor_id <> ''::text);


--
-- Name: ix_cluster_events_job_id; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_cluster_events_job_id ON public.cluster_events USING btree (job_id, sequence) WHERE (job_id <> ''::text);


--
-- Name: ix_gangs_job_id; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_gangs_job_id ON public.gangs USING btree (job_id);


--
-- Name: ix_request_ranges_job_id; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_request_ranges_job_id ON public.request_ranges USING btree (job_id);


--
-- Name: ix_requests_job_id; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_requests_job_id ON public.requests USING btree (job_id);


--
-- Name: gangs fk_gangs_job_id; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.gangs
    ADD CONSTRAINT fk_gangs_job_id FOREIGN KEY (job_id) REFERENCES public.jobs(job_id) ON DELETE CASCADE;


--
-- Name: job_events fk_job_events_job_id; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.job_events
    ADD CONSTRAINT fk_job_events_job_id FOREIGN KEY (job_id) REFERENCES public.jobs(job_id) ON DELETE CASCADE;


--
-- Name: request_ranges fk_request_ranges_job_id; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.request_ranges
    ADD CONSTRAINT fk_request_ranges_job_id FOREIGN KEY (job_id) REFERENCES public.jobs(job_id) ON DELETE CASCADE;


--
-- Name: requests fk_requests_job_id; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.requests
    ADD CONSTRAINT fk_requests_job_id FOREIGN KEY (job_id) REFERENCES public.jobs(job_id) ON DELETE CASCADE;


--
-- PostgreSQL database dump complete
--


