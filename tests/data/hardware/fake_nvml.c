/* A libnvidia-ml.so.1 with two GPUs, of which the second falls off the bus after its fields were read twice.
   Only what tests/unit/test_collectors_nvml.py asks for; what is missing is "function not found". */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, GPU_IS_LOST = 15 };

typedef struct { unsigned gpu, memory; } rates_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef union { double d; unsigned ui; unsigned long long ull; } value_t;
typedef struct {
  uint32_t field, scope;
  int64_t timestamp, latency;
  unsigned type;
  unsigned ret;
  value_t value;
} field_t;

static int reads[2];
static int index_of(void *handle) { return (int)((uintptr_t)handle - 0x1000); }
static int lost(void *handle) { return index_of(handle) == 1 && reads[1] >= 3; }

int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return "an error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  *handle = (void *)(uintptr_t)(0x1000 + index);
  return SUCCESS;
}

int nvmlDeviceGetName(void *handle, char *name, unsigned size) {
  snprintf(name, size, "Fake GPU");
  return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *handle, rates_t *rates) {
  if (lost(handle)) return GPU_IS_LOST;
  rates->gpu = 55;
  rates->memory = 44;
  return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory) {
  if (lost(handle)) return GPU_IS_LOST;
  memory->total = 1ULL << 34;
  memory->free = memory->used = 1ULL << 33;
  return SUCCESS;
}

int nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *temperature) {
  if (lost(handle)) return GPU_IS_LOST;
  *temperature = 50;
  return SUCCESS;
}

int nvmlDeviceGetFieldValues(void *handle, int count, field_t *fields) {
  if (lost(handle)) return GPU_IS_LOST;
  int power = 0;
  for (int i = 0; i < count; i++) {
    fields[i].ret = SUCCESS;
    if (fields[i].field == 186) {
      power = 1;
      fields[i].type = 1;
      fields[i].value.ui = 300000 + 1000 * index_of(handle);
    } else if (fields[i].field == 83) {
      fields[i].type = 3;
      fields[i].value.ull = 9000000000ULL;
    } else {
      fields[i].ret = NOT_SUPPORTED;
    }
  }
  reads[index_of(handle)] += power;
  return SUCCESS;
}
