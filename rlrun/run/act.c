/* Acts with a policy.onnx of rlrun in one environment, by ONNX Runtime's C interface alone.
 *
 *     cc -O2 act.c -o act -ldl && ./act path/to/libonnxruntime.so policy.onnx
 *
 * Reads a line of numbers for every step: first (1: the observation opens an episode), the reward
 * of the step before, the observation (its parts in the order of the graph's inputs). Answers with
 * a line, the action. The recurrent state and the previous action are kept here.
 * The library is in the Python wheel: onnxruntime/capi/libonnxruntime.so.*. No header is needed:
 * functions are taken by their index in struct OrtApi, to which versions of the library append. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { /* indices in struct OrtApi */
  GetErrorMessage = 2, CreateEnv = 3, CreateSession = 7, Run = 9, CreateSessionOptions = 10,
  SetIntraOpNumThreads = 24, SessionGetInputCount = 30, SessionGetInputTypeInfo = 33,
  SessionGetInputName = 36, CreateTensorWithDataAsOrtValue = 49, GetTensorMutableData = 51,
  CastTypeInfoToTensorInfo = 55, GetTensorElementType = 60, GetDimensionsCount = 61,
  GetDimensions = 62, GetTensorTypeAndShape = 65, CreateCpuMemoryInfo = 69,
  GetAllocatorWithDefaultOptions = 78, ReleaseValue = 96, ReleaseTensorTypeAndShapeInfo = 99,
  SessionGetModelMetadata = 111, ModelMetadataLookupCustomMetadataMap = 116
};
enum { MOST = 64, RANK = 16 }; /* inputs, axes */
typedef void *Ptr;             /* OrtEnv *, OrtSession *, ...; of a status NULL: success */
typedef void (*Function)(void);
typedef struct { const Function *(*GetApi)(uint32_t version); } OrtApiBase;
typedef struct { int type; int64_t shape[RANK]; size_t rank, count; } Info;
static const Function *ort;
#define ORT(name, ...) ((Ptr(*)(__VA_ARGS__))ort[name]) /* its parameters; a call follows */
#define RELEASE(name, x) ((void (*)(Ptr))ort[name])(x)
static const size_t SIZE[] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 0, 8}; /* bytes, by element type */

static void fail(const char *text) { fprintf(stderr, "act: %s\n", text), exit(1); }
static void check(Ptr status) { if (status) fail(ORT(GetErrorMessage, Ptr)(status)); }

static Info describe(Ptr tensor_info) {
  Info info = {.count = 1};
  check(ORT(GetTensorElementType, Ptr, int *)(tensor_info, &info.type));
  check(ORT(GetDimensionsCount, Ptr, size_t *)(tensor_info, &info.rank));
  if (info.rank > RANK || info.type > 11 || !SIZE[info.type]) fail("a tensor has another type");
  check(ORT(GetDimensions, Ptr, int64_t *, size_t)(tensor_info, info.shape, info.rank));
  info.shape[0] = 1; /* environment */
  for (size_t i = 0; i < info.rank; i++) info.count *= info.shape[i];
  return info;
}

static double element(int type, Ptr data, size_t i, const double *set) { /* set: to this value */
#define CASE(T) { T *at = (T *)data + i; if (set) *at = (T)*set; return (double)*at; }
  switch (type) {
    case 1: CASE(float) case 2: case 9: CASE(uint8_t) case 3: CASE(int8_t) case 4: CASE(uint16_t)
    case 5: CASE(int16_t) case 6: CASE(int32_t) case 7: CASE(int64_t) default: CASE(double)
  }
}

int main(int argc, char **argv) {
  OrtApiBase *(*base)(void) = NULL;
  Ptr library = argc == 3 ? dlopen(argv[1], RTLD_NOW) : NULL;
  if (library) *(Ptr *)&base = dlsym(library, "OrtGetApiBase");
  if (!base) fail(argc == 3 ? dlerror() : "usage: act LIBONNXRUNTIME POLICY.onnx");
  ort = base()->GetApi(2); /* the oldest version with all of them */

  Ptr env, options, session, memory, allocator, metadata, found, data[MOST], inputs[MOST];
  char *names[MOST], *output_names[MOST + 1] = {"action"}, *version = NULL;
  size_t count, outputs = 1, source[MOST]; /* of an input: the output that is its next value */
  Info info, infos[MOST];
  check(ORT(CreateEnv, int, const char *, Ptr *)(3, "act", &env)); /* logs errors only */
  check(ORT(CreateSessionOptions, Ptr *)(&options));
  check(ORT(SetIntraOpNumThreads, Ptr, int)(options, 1));
  check(ORT(CreateSession, Ptr, const char *, Ptr, Ptr *)(env, argv[2], options, &session));
  check(ORT(CreateCpuMemoryInfo, int, int, Ptr *)(0, 0, &memory));
  check(ORT(GetAllocatorWithDefaultOptions, Ptr *)(&allocator));
  check(ORT(SessionGetModelMetadata, Ptr, Ptr *)(session, &metadata));
  check(ORT(ModelMetadataLookupCustomMetadataMap, Ptr, Ptr, const char *, char **)(
      metadata, allocator, "rlrun_interface", &version));
  if (!version || strcmp(version, "1")) fail("its interface has another version");
  check(ORT(SessionGetInputCount, Ptr, size_t *)(session, &count));
  if (count > MOST) fail("the policy has too many inputs");
  for (size_t i = 0; i < count; i++) { /* inputs are zeros at first and stay in their place */
    check(ORT(SessionGetInputName, Ptr, size_t, Ptr, char **)(session, i, allocator, &names[i]));
    check(ORT(SessionGetInputTypeInfo, Ptr, size_t, Ptr *)(session, i, &found));
    check(ORT(CastTypeInfoToTensorInfo, Ptr, Ptr *)(found, &found));
    info = infos[i] = describe(found);
    data[i] = calloc(info.count, SIZE[info.type]);
    check(ORT(CreateTensorWithDataAsOrtValue, Ptr, Ptr, size_t, int64_t *, size_t, int, Ptr *)(
        memory, data[i], info.count * SIZE[info.type], info.shape, info.rank, info.type,
        &inputs[i]));
    source[i] = strcmp(names[i], "prev_action") ? MOST : 0;
    if (strncmp(names[i], "state.", 6)) continue;
    output_names[outputs] = malloc(strlen(names[i]) + 6);
    sprintf(output_names[outputs], "next_%s", names[i]), source[i] = outputs++;
  }
  for (double first, reward, x; scanf("%lf %lf", &first, &reward) == 2;) {
    for (size_t i = 0; i < count; i++) {
      if (!strcmp(names[i], "first")) element(infos[i].type, data[i], 0, &first);
      if (!strcmp(names[i], "prev_reward")) element(infos[i].type, data[i], 0, &reward);
      for (size_t k = 0; k < infos[i].count && !strncmp(names[i], "obs", 3); k++) {
        if (scanf("%lf", &x) != 1) fail("a line holds first, reward, the observation");
        element(infos[i].type, data[i], k, &x);
      }
    }
    Ptr results[MOST + 1] = {NULL}; /* the library allocates them */
    check(ORT(Run, Ptr, Ptr, char **, Ptr *, size_t, char **, size_t, Ptr *)(
        session, NULL, names, inputs, count, output_names, outputs, results));
    check(ORT(GetTensorTypeAndShape, Ptr, Ptr *)(results[0], &found));
    info = describe(found);
    RELEASE(ReleaseTensorTypeAndShapeInfo, found);
    check(ORT(GetTensorMutableData, Ptr, Ptr *)(results[0], &found));
    for (size_t k = 0; k < info.count; k++) printf("%.17g ", element(info.type, found, k, NULL));
    puts(""), fflush(stdout);
    for (size_t i = 0; i < count; i++) {
      if (source[i] == MOST) continue;
      check(ORT(GetTensorMutableData, Ptr, Ptr *)(results[source[i]], &found));
      memcpy(data[i], found, infos[i].count * SIZE[infos[i].type]);
    }
    for (size_t k = 0; k < outputs; k++) RELEASE(ReleaseValue, results[k]);
  }
  return 0;
}
