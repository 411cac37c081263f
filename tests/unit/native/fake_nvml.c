/* A libnvidia-ml.so.1 of eight invented GPUs, for the real nvidia-ml-py to run on. What it plays comes from the
 * environment:
 *
 *   FAKE_NVML_BOARD   a100 (NVSwitch, MIG on the last GPU), v100 (direct NVLink mesh, two sockets), l4 (no NVLink)
 *   FAKE_NVML_FAULT   none, hang, hang-late, crash, noise, no-driver, lost (GPU 3), sick (GPU 2: memory errors, 5: hot)
 *
 * Built with -DOLD_DRIVER it lacks the functions that drivers of 2018 lack.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int ret;
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, IS_LOST = 15 };

typedef struct { int index; int mig; } device; /* mig: 0 for a GPU, else the number of an instance from 1 */
typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} pci_info;
typedef struct { unsigned long long total, free, used; } memory_info;
typedef struct {
    unsigned multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount,
        sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} attributes;

static device gpus[8], slices[2];
static const unsigned char buses[8] = {0x07, 0x0b, 0x48, 0x4c, 0x88, 0x8b, 0xc8, 0xcb};

static int is(const char *variable, const char *value) {
    const char *set = getenv(variable);
    return set != NULL && strcmp(set, value) == 0;
}
static int board(const char *name) {
    return getenv("FAKE_NVML_BOARD") == NULL ? strcmp(name, "a100") == 0 : is("FAKE_NVML_BOARD", name);
}
static int fault(const char *name) { return is("FAKE_NVML_FAULT", name); }

ret nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    for (int i = 0; i < 8; i++) gpus[i].index = i;
    for (int i = 0; i < 2; i++) slices[i] = (device){7, i + 1};
    if (fault("hang")) for (;;) pause();
    if (fault("crash")) raise(SIGSEGV);
    if (fault("noise")) {
        for (int i = 0; i < 1000; i++) printf("libnvidia: warning %d\n", i);
        fflush(stdout);
    }
    return fault("no-driver") ? DRIVER_NOT_LOADED : OK;
}
ret nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
ret nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(ret error) {
    return error == DRIVER_NOT_LOADED ? "Driver Not Loaded" : error == IS_LOST ? "GPU is lost" : "Some Other Error";
}
ret nvmlSystemGetDriverVersion(char *text, unsigned length) {
    strncpy(text, "550.54.15", length);
    return OK;
}
ret nvmlDeviceGetCount_v2(unsigned *count) { *count = 8; return OK; }
ret nvmlDeviceGetHandleByIndex_v2(unsigned i, device **handle) {
    if (i >= 8) return INVALID;
    if (fault("lost") && i == 3) return IS_LOST;
    *handle = &gpus[i];
    return OK;
}
ret nvmlDeviceGetName(device *d, char *name, unsigned length) {
    const char *text = board("v100") ? "Tesla V100-SXM2-32GB" : board("l4") ? "NVIDIA L4" : "NVIDIA A100-SXM4-80GB";
    if (d->mig) text = d->mig == 1 ? "NVIDIA A100-SXM4-80GB MIG 3g.40gb" : "NVIDIA A100-SXM4-80GB MIG 1g.10gb";
    strncpy(name, text, length);
    return OK;
}
ret nvmlDeviceGetUUID(device *d, char *uuid, unsigned length) {
    snprintf(uuid, length, "%s-00000000-0000-0000-0000-00000000%02d%02d", d->mig ? "MIG" : "GPU", d->index, d->mig);
    return OK;
}
static void fill(pci_info *info, unsigned bus, unsigned id) {
    memset(info, 0, sizeof *info);
    info->bus = bus;
    info->pciDeviceId = id << 16 | 0x10de;
    snprintf(info->busId, sizeof info->busId, "00000000:%02X:00.0", bus);
}
ret nvmlDeviceGetPciInfo_v3(device *d, pci_info *info) {
    if (d->mig) return INVALID;
    fill(info, buses[d->index], board("v100") ? 0x1db5 : board("l4") ? 0x27b8 : 0x20b2);
    return OK;
}
ret nvmlDeviceGetMemoryInfo(device *d, memory_info *info) {
    unsigned long long mib = board("v100") ? 32510 : board("l4") ? 23034 : 81920;
    if (d->mig) mib = d->mig == 1 ? 40192 : 9728;
    *info = (memory_info){mib << 20, (mib - 512) << 20, 512ull << 20};
    return OK;
}
ret nvmlDeviceGetPerformanceState(device *d, int *state) { (void)d; *state = 8; return OK; }
ret nvmlDeviceGetCurrPcieLinkGeneration(device *d, unsigned *x) { (void)d; *x = 1; return OK; }
ret nvmlDeviceGetCurrPcieLinkWidth(device *d, unsigned *x) { (void)d; *x = 16; return OK; }
ret nvmlDeviceGetMaxPcieLinkGeneration(device *d, unsigned *x) { (void)d; *x = board("v100") ? 3 : 4; return OK; }
ret nvmlDeviceGetMaxPcieLinkWidth(device *d, unsigned *x) { (void)d; *x = 16; return OK; }
ret nvmlDeviceGetPowerUsage(device *d, unsigned *milliwatts) { *milliwatts = 61000 + d->index; return OK; }
ret nvmlDeviceGetEnforcedPowerLimit(device *d, unsigned *milliwatts) { (void)d; *milliwatts = 400000; return OK; }
ret nvmlDeviceGetCudaComputeCapability(device *d, int *major, int *minor) {
    (void)d;
    *major = board("v100") ? 7 : 8;
    *minor = board("l4") ? 9 : 0;
    return OK;
}
ret nvmlDeviceGetTotalEccErrors(device *d, int type, int counter, unsigned long long *count) {
    (void)counter;
    if (board("l4")) return NOT_SUPPORTED;
    *count = type == 1 && fault("sick") && d->index == 2 ? 3 : 0;
    return OK;
}
ret nvmlDeviceGetCurrentClocksThrottleReasons(device *d, unsigned long long *reasons) {
    *reasons = fault("sick") && d->index == 5 ? 0x40 | 0x04 : 0x01;
    return OK;
}
ret nvmlDeviceGetTopologyCommonAncestor(device *a, device *b, unsigned *level) {
    if (fault("hang-late") && a->index == 6) for (;;) pause();
    *level = a->index / 2 == b->index / 2 ? 10 : a->index / 4 == b->index / 4 ? 40 : 50;
    return OK;
}
ret nvmlDeviceGetP2PStatus(device *a, device *b, unsigned index, unsigned *status) {
    (void)index;
    *status = board("l4") && a->index / 4 != b->index / 4 ? 1 : 0;
    return OK;
}

/* V100: links 0-1 to the neighbour in the pair, 2 to its like in the other half, 3 to the next pair of the half. */
static int peer(int gpu, unsigned link) {
    if (link < 2) return gpu ^ 1;
    if (link == 2) return gpu ^ 4;
    return link == 3 ? gpu ^ 2 : -1;
}
ret nvmlDeviceGetNvLinkState(device *d, unsigned link, unsigned *active) {
    if (board("l4") || d->mig) return NOT_SUPPORTED;
    if (link >= (board("v100") ? 6 : 12)) return INVALID;
    *active = board("v100") ? peer(d->index, link) >= 0 : !(d->index == 1 && link >= 10); /* GPU 1 has lost two */
    return OK;
}
ret nvmlDeviceGetNvLinkRemotePciInfo_v2(device *d, unsigned link, pci_info *info) {
    if (board("v100")) fill(info, buses[peer(d->index, link)], 0x1db5);
    else fill(info, 0xa0 + link / 2, 0x1af1);
    return OK;
}

#ifndef OLD_DRIVER
ret nvmlDeviceGetNvLinkRemoteDeviceType(device *d, unsigned link, unsigned *type) {
    (void)d, (void)link;
    *type = board("v100") ? 0 : 2;
    return OK;
}
ret nvmlDeviceGetNumaNodeId(device *d, int *node) { (void)d, (void)node; return NOT_SUPPORTED; }
ret nvmlDeviceGetCurrentClocksEventReasons(device *d, unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksThrottleReasons(d, reasons);
}
ret nvmlDeviceGetRemappedRows(device *d, unsigned *c, unsigned *u, unsigned *pending, unsigned *failed) {
    (void)d;
    *c = *u = *pending = *failed = 0;
    return OK;
}
ret nvmlDeviceGetMigMode(device *d, unsigned *now, unsigned *later) {
    if (!board("a100")) return NOT_SUPPORTED;
    *now = *later = d->index == 7;
    return OK;
}
ret nvmlDeviceGetMaxMigDeviceCount(device *d, unsigned *count) { (void)d; *count = 7; return OK; }
ret nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned i, device **handle) {
    if (d->index != 7 || i >= 2) return NOT_FOUND;
    *handle = &slices[i];
    return OK;
}
ret nvmlDeviceGetGpuInstanceId(device *d, unsigned *id) { *id = d->mig == 1 ? 2 : 9; return OK; }
ret nvmlDeviceGetComputeInstanceId(device *d, unsigned *id) { (void)d; *id = 0; return OK; }
ret nvmlDeviceGetAttributes_v2(device *d, attributes *a) {
    memset(a, 0, sizeof *a);
    a->multiprocessorCount = d->mig == 1 ? 42 : 14;
    a->gpuInstanceSliceCount = a->computeInstanceSliceCount = d->mig == 1 ? 3 : 1;
    return OK;
}
#endif
