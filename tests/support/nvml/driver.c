/* A driver for tests: libnvidia-ml.so.1 with the functions that the executor calls.
 *
 * The file named by FAKE_NVML_PROFILE describes the machine, one fact per line; FORMAT in
 * fake_driver.py lists them. The file is read again at each nvmlInit, and at a call after it has
 * changed, so tests can change it while the executor runs. GPUs vanish and return only at an
 * nvmlInit, as with a real driver.
 * Signatures and structures are those of the binding nvidia-ml-py 13.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7 };
enum { GPUS = 16, PARTS = 8, LINKS = 18, PROCESSES = 16, ERRORS = 64, TEXT = 96 };

typedef unsigned long long u64;
typedef struct { char uuid[TEXT], name[TEXT]; u64 memory_mib; unsigned processors; } part_t;
typedef struct { int active, kind; char far[32]; } link_t;
typedef struct { unsigned pid; u64 used_mib; int kind; } process_t;
typedef struct {
    char uuid[TEXT], name[TEXT], bus[32];
    unsigned minor, mig, mig_pending, parts, processes;
    u64 total_mib, reserved_mib;
    int numa, recovery, busy;
    u64 used_mib;
    unsigned xid, xid_count;
    int ignores_limits;
    u64 cpus;
    part_t part[PARTS];
    link_t link[LINKS];
    process_t process[PROCESSES];
} gpu_t;
typedef struct { char call[TEXT]; int gpu, code; } error_t;

static gpu_t gpus[GPUS];
static int levels[GPUS][GPUS];
static error_t errors[ERRORS];
static unsigned gpu_count, error_count, opened;
static struct timespec changed_at;
static double hang_s;
static char hang_call[TEXT];

static void read_profile(int whole);
/* Reads the profile again if another file is there, or it has changed. */
static void refresh(void) {
    struct stat now;
    const char *path = getenv("FAKE_NVML_PROFILE");
    if (path && opened && !stat(path, &now) && (now.st_mtim.tv_sec != changed_at.tv_sec ||
        now.st_mtim.tv_nsec != changed_at.tv_nsec)) read_profile(0);
}

/* A handle points to a GPU or to one of its MIG parts. */
static int gpu_of(void *handle) {
    char *at = handle;
    if (at < (char *)gpus || at >= (char *)(gpus + GPUS)) return -1;
    return (int)((at - (char *)gpus) / sizeof(gpu_t));
}
static part_t *part_of(void *handle) {
    gpu_t *gpu = &gpus[gpu_of(handle)];
    for (unsigned i = 0; i < gpu->parts; i++) if (handle == &gpu->part[i]) return &gpu->part[i];
    return NULL;
}
static int failing(const char *call, int gpu) {
    refresh();
    if (hang_s > 0 && !strcmp(hang_call, call)) usleep((useconds_t)(hang_s * 1e6));
    for (unsigned i = 0; i < error_count; i++)
        if ((!strcmp(errors[i].call, call) || errors[i].call[0] == '*') && (errors[i].gpu < 0 || errors[i].gpu == gpu))
            return errors[i].code;
    return SUCCESS;
}
#define BEGIN(handle) \
    int at = gpu_of(handle); \
    if (at < 0) return INVALID; \
    gpu_t *gpu = &gpus[at]; (void)gpu; \
    int code = failing(__func__, at); \
    if (code) return code

static void read_line(char *line) {
    char word[TEXT] = "", a[TEXT] = "", b[TEXT] = "", c[TEXT] = "";
    unsigned g = 0, n = 0;
    if (sscanf(line, "%95s", word) != 1 || word[0] == '#') return;
    if (!strcmp(word, "error")) {
        error_t *e = &errors[error_count++ % ERRORS];
        if (sscanf(line, "%*s %95s %d %d", e->call, &e->gpu, &e->code) != 3) abort();
        return;
    }
    if (!strcmp(word, "hang")) {
        if (sscanf(line, "%*s %95s %lf", hang_call, &hang_s) != 2) abort();
        return;
    }
    if (!strcmp(word, "level")) {
        unsigned h = 0; int level = 0;
        if (sscanf(line, "%*s %u %u %d", &g, &h, &level) != 3 || g >= GPUS || h >= GPUS) abort();
        levels[g][h] = levels[h][g] = level;
        return;
    }
    if (sscanf(line, "%*s %u", &g) != 1 || g >= GPUS) abort();
    gpu_t *gpu = &gpus[g];
    if (!strcmp(word, "gpu")) {
        if (sscanf(line, "%*s %*u %95s %31s %u %llu %llu %95[^\n]", gpu->uuid, gpu->bus, &gpu->minor,
                   &gpu->total_mib, &gpu->reserved_mib, gpu->name) != 6) abort();
        gpu->numa = -1; gpu->recovery = -1;
        if (g >= gpu_count) gpu_count = g + 1;
    } else if (!strcmp(word, "numa")) {
        if (sscanf(line, "%*s %*u %d", &gpu->numa) != 1) abort();
    } else if (!strcmp(word, "cpus")) {
        if (sscanf(line, "%*s %*u %llx", &gpu->cpus) != 1) abort();
    } else if (!strcmp(word, "recovery")) {
        if (sscanf(line, "%*s %*u %d", &gpu->recovery) != 1) abort();
    } else if (!strcmp(word, "mig")) {
        if (sscanf(line, "%*s %*u %u %u", &gpu->mig, &gpu->mig_pending) != 2) abort();
    } else if (!strcmp(word, "part")) {
        part_t *part = &gpu->part[gpu->parts++ % PARTS];
        if (sscanf(line, "%*s %*u %95s %llu %u %95[^\n]", part->uuid, &part->memory_mib,
                   &part->processors, part->name) != 4) abort();
    } else if (!strcmp(word, "link")) {
        if (sscanf(line, "%*s %*u %u %95s %95s %95s", &n, a, b, c) < 2 || n >= LINKS) abort();
        gpu->link[n].active = 1;
        gpu->link[n].kind = strcmp(a, "switch") ? 0 : 2;
        strncpy(gpu->link[n].far, a, 31);
    } else if (!strcmp(word, "process")) {
        process_t *process = &gpu->process[gpu->processes++ % PROCESSES];
        if (sscanf(line, "%*s %*u %u %llu %95s", &process->pid, &process->used_mib, a) < 2) abort();
        process->kind = !strcmp(a, "mps") ? 1 : !strcmp(a, "graphics") ? 2 : 0;
    } else if (!strcmp(word, "used")) {
        if (sscanf(line, "%*s %*u %llu %d", &gpu->used_mib, &gpu->busy) != 2) abort();
    } else if (!strcmp(word, "ignores_limits")) {
        gpu->ignores_limits = 1;
    } else if (!strcmp(word, "xid")) {
        if (sscanf(line, "%*s %*u %u %u", &gpu->xid, &gpu->xid_count) != 2) abort();
    } else abort();
}

/* Without `whole`, GPUs keep their places: one that is no longer in the profile is lost. */
static void read_profile(int whole) {
    unsigned before = gpu_count;
    char known[GPUS][TEXT];
    struct stat now;
    for (unsigned i = 0; i < before; i++) strcpy(known[i], gpus[i].uuid);
    memset(gpus, 0, sizeof gpus); memset(levels, 0, sizeof levels);
    gpu_count = error_count = 0; hang_s = 0;
    const char *path = getenv("FAKE_NVML_PROFILE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    if (!file) return;
    if (!fstat(fileno(file), &now)) changed_at = now.st_mtim;
    opened = 1;
    while (fgets(line, sizeof line, file)) read_line(line);
    fclose(file);
    if (whole) return;
    for (unsigned i = 0; i < before; i++)
        if (strcmp(known[i], gpus[i].uuid)) {
            error_t *e = &errors[error_count++ % ERRORS];
            strcpy(e->call, "*"); e->gpu = (int)i; e->code = 15; /* NVML_ERROR_GPU_IS_LOST */
        }
    gpu_count = before;
}
int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    opened = 0;
    read_profile(1);
    if (!opened) return 9; /* NVML_ERROR_DRIVER_NOT_LOADED */
    return failing(__func__, -1);
}
int nvmlShutdown(void) { return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = gpu_count; return failing(__func__, -1); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (index >= gpu_count) return INVALID;
    *handle = &gpus[index]; return failing(__func__, (int)index); }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    for (unsigned i = 0; i < gpu_count; i++)
        if (!strcmp(gpus[i].uuid, uuid)) { *handle = &gpus[i]; return failing(__func__, (int)i); }
    return NOT_FOUND; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    BEGIN(handle);
    part_t *part = part_of(handle);
    snprintf(text, size, "%s", part ? part->uuid : gpu->uuid); return SUCCESS; }
int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    BEGIN(handle);
    part_t *part = part_of(handle);
    snprintf(text, size, "%s", part ? part->name : gpu->name); return SUCCESS; }
int nvmlDeviceGetMinorNumber(void *handle, unsigned *minor) {
    BEGIN(handle); *minor = gpu->minor; return SUCCESS; }
struct memory { u64 total, free, used; };
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory) {
    BEGIN(handle);
    part_t *part = part_of(handle);
    memory->total = (part ? part->memory_mib : gpu->total_mib) << 20;
    memory->used = part ? 0 : gpu->used_mib << 20; memory->free = memory->total - memory->used;
    return SUCCESS; }
struct memory2 { unsigned version; u64 total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory2 *memory) {
    BEGIN(handle);
    /* The version has the size of the structure in its lower bits, as the real driver checks. */
    if (memory->version != (sizeof *memory | 2u << 24)) return 25;
    memory->total = gpu->total_mib << 20; memory->reserved = gpu->reserved_mib << 20;
    memory->used = 0; memory->free = memory->total - memory->reserved;
    return SUCCESS; }
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    BEGIN(handle); *current = gpu->mig; *pending = gpu->mig_pending; return SUCCESS; }
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    BEGIN(handle); *count = PARTS - 1; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **part) {
    BEGIN(handle);
    if (index >= gpu->parts) return NOT_FOUND;
    *part = &gpu->part[index]; return SUCCESS; }
int nvmlDeviceGetGpuInstanceId(void *handle, unsigned *number) {
    BEGIN(handle);
    part_t *part = part_of(handle);
    if (!part) return NOT_SUPPORTED;
    *number = (unsigned)(part - gpu->part) + 1; return SUCCESS; }
int nvmlDeviceGetComputeInstanceId(void *handle, unsigned *number) {
    BEGIN(handle);
    if (!part_of(handle)) return NOT_SUPPORTED;
    *number = 0; return SUCCESS; }
struct attributes { unsigned processors, others[7]; u64 memory_mib; };
int nvmlDeviceGetAttributes_v2(void *handle, struct attributes *attributes) {
    BEGIN(handle);
    part_t *part = part_of(handle);
    if (!part) return NOT_SUPPORTED;
    memset(attributes, 0, sizeof *attributes);
    attributes->processors = part->processors; attributes->memory_mib = part->memory_mib;
    return SUCCESS; }
struct pci {
    char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *pci) {
    BEGIN(handle);
    memset(pci, 0, sizeof *pci); snprintf(pci->bus_id, 32, "%s", gpu->bus); return SUCCESS; }
int nvmlDeviceGetNumaNodeId(void *handle, int *node) {
    BEGIN(handle);
    if (gpu->numa < 0) return NOT_SUPPORTED;
    *node = gpu->numa; return SUCCESS; }
int nvmlDeviceGetCpuAffinityWithinScope(void *handle, unsigned words, u64 *set, unsigned scope) {
    BEGIN(handle);
    (void)scope;
    if (!words) return TOO_SMALL;
    set[0] = gpu->cpus; return SUCCESS; }
int nvmlDeviceGetTopologyCommonAncestor(void *handle, void *other, unsigned *level) {
    BEGIN(handle);
    *level = (unsigned)levels[at][gpu_of(other)]; return SUCCESS; }
int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *active) {
    BEGIN(handle);
    if (link >= LINKS) return INVALID;
    *active = (unsigned)gpu->link[link].active; return SUCCESS; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, unsigned *kind) {
    BEGIN(handle); *kind = (unsigned)gpu->link[link].kind; return SUCCESS; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, struct pci *pci) {
    BEGIN(handle);
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, 32, "%s", gpu->link[link].far); return SUCCESS; }
struct value { unsigned id, scope; long long time, latency; int type, code; u64 value; };
int nvmlDeviceGetFieldValues(void *handle, int count, struct value *values) {
    BEGIN(handle);
    for (int i = 0; i < count; i++) {
        values[i].code = values[i].id == 230 && gpu->recovery >= 0 ? SUCCESS : NOT_SUPPORTED;
        values[i].value = (u64)(gpu->recovery < 0 ? 0 : gpu->recovery);
    }
    return SUCCESS; }
struct process { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; };
/* All bits are set where the driver does not tell. */
static u64 bytes_of(u64 mib) { return mib == ~0ull ? mib : mib << 20; }
static int list(gpu_t *gpu, int kind, unsigned *count, struct process *found) {
    unsigned room = *count, n = 0;
    for (unsigned i = 0; i < gpu->processes; i++) n += gpu->process[i].kind == kind;
    *count = n;
    if (room < n) return TOO_SMALL;
    n = 0;
    for (unsigned i = 0; found && i < gpu->processes; i++)
        if (gpu->process[i].kind == kind)
            found[n++] = (struct process){gpu->process[i].pid, bytes_of(gpu->process[i].used_mib), 0, 0};
    return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, struct process *found) {
    BEGIN(handle); return list(gpu, 0, count, found); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *handle, unsigned *count, struct process *found) {
    BEGIN(handle); return list(gpu, 1, count, found); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, struct process *found) {
    BEGIN(handle); return list(gpu, 2, count, found); }
struct busy { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(void *handle, struct busy *busy) {
    BEGIN(handle); busy->gpu = (unsigned)gpu->busy; busy->memory = 0; return SUCCESS; }
#ifndef BEFORE_615
/* Limits of groups are in the file FAKE_NVML_PROFILE.limits, one per line, the newest last. As the
 * kernel's, they belong to the directory and not to its name, so they vanish with it.
 */
struct limits { const char *name_space; u64 soft, hard, used; };
static int open_limits(const char *name_space, struct stat *group) {
    char name[4096];
    if (!name_space || stat(name_space, group) || !S_ISDIR(group->st_mode)) return -1;
    snprintf(name, sizeof name, "%s.limits", getenv("FAKE_NVML_PROFILE"));
    int file = open(name, O_RDWR | O_CREAT | O_APPEND, 0600);
    if (file >= 0) flock(file, LOCK_EX);
    return file;
}
int nvmlDeviceSetMemoryLimits_v1(void *handle, struct limits *limits) {
    BEGIN(handle);
    struct stat group;
    if (geteuid()) return 4; /* NVML_ERROR_NO_PERMISSION */
    if (part_of(handle)) return NOT_SUPPORTED;
    if (limits->soft > limits->hard || (limits->hard != ~0ull && limits->hard > gpu->total_mib << 20))
        return INVALID;
    int file = open_limits(limits->name_space, &group);
    if (file < 0) return 17; /* NVML_ERROR_OPERATING_SYSTEM */
    if (!gpu->ignores_limits)
        dprintf(file, "%s %llu %llu %llu %llu\n", gpu->uuid, (u64)group.st_dev, (u64)group.st_ino,
                limits->soft, limits->hard);
    close(file); return SUCCESS; }
int nvmlDeviceGetMemoryLimits_v1(void *handle, struct limits *limits) {
    BEGIN(handle);
    struct stat group;
    char uuid[TEXT];
    u64 device, inode, soft, hard;
    int fd = open_limits(limits->name_space, &group);
    if (fd < 0) return 17;
    code = NOT_FOUND;
    FILE *file = fdopen(fd, "r");
    while (fscanf(file, "%95s %llu %llu %llu %llu", uuid, &device, &inode, &soft, &hard) == 5)
        if (!strcmp(uuid, gpu->uuid) && device == group.st_dev && inode == group.st_ino) {
            limits->soft = soft; limits->hard = hard; limits->used = 0; code = SUCCESS;
        }
    fclose(file); return code; }
#endif
/* One event set for all: each new profile brings its XIDs, once. */
static int event_set;
int nvmlEventSetCreate(void **set) { *set = &event_set; return failing(__func__, -1); }
int nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }
int nvmlDeviceRegisterEvents(void *handle, u64 types, void *set) {
    (void)types; (void)set; BEGIN(handle); return SUCCESS; }
struct event { void *device; u64 type, data; unsigned gpu_instance, compute_instance; };
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned ms) {
    (void)set; (void)ms;
    int code = failing(__func__, -1);
    if (code) return code;
    for (unsigned i = 0; i < gpu_count; i++)
        if (gpus[i].xid_count) {
            gpus[i].xid_count--;
            *event = (struct event){&gpus[i], 8, gpus[i].xid, ~0u, ~0u};
            return SUCCESS;
        }
    return 10; /* NVML_ERROR_TIMEOUT */
}
const char *nvmlErrorString(int code) { (void)code; return "an error of the driver for tests"; }
