// The driver's functions, as many as tvmdml uses, on pretended devices: this computer runs the kernels.
//
// TVMDML_EMULATED_DEVICES  how many devices there are (1)
#include <pthread.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <unordered_set>
#include <vector>

#include "codes.hpp"
#include "grid.hpp"
#include "memory.hpp"
#include "modules.hpp"
#include "streams.hpp"

using namespace tvmdml_emulator;

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
struct CUlaunchConfig {
  unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  Stream *hStream;
  void *attrs;
  unsigned numAttrs;
};

#define API extern "C" __attribute__((visibility("default"))) CUresult

namespace {

constexpr int version = 13000;
constexpr char device_name[] = "tvmdml's CUDA emulator (a CPU)";
constexpr unsigned most_threads = 1024, most_parameters = 4096;

// Everything lives until the process does: calls may come while it ends.
struct Driver {
  std::recursive_mutex lock;
  std::vector<Context> contexts;
  std::vector<Pool> pools;  // one a device
  std::unordered_set<void *> events, modules, graphs, execs, made_pools;
};

std::atomic<bool> started{false}, forked{false}, ended{false};

Driver &driver() {
  static Driver &one = *new Driver;
  return one;
}

Context &context_of(int device) { return driver().contexts[static_cast<size_t>(device)]; }
Pool &pool_of(int device) { return driver().pools[static_cast<size_t>(device)]; }

std::vector<Context *> &stack() {  // the thread's contexts
  static thread_local std::vector<Context *> contexts;
  return contexts;
}

Code state() {
  if (forked || !started) return CUDA_ERROR_NOT_INITIALIZED;
  return ended ? CUDA_ERROR_DEINITIALIZED : CUDA_SUCCESS;
}

// What looks something up, without the lock: a launch under way may have it for long.
template <class F>
CUresult quick(F body) {
  if (const Code code = state()) return code;
  try {
    body();
    return CUDA_SUCCESS;
  } catch (const Error &error) {
    return error.code;
  }
}

// What needs a current context that nothing has gone wrong with.
template <class F>
CUresult in_context(F body) {
  if (const Code code = state()) return code;
  const std::lock_guard<std::recursive_mutex> hold(driver().lock);
  try {
    require(!stack().empty() && stack().back(), CUDA_ERROR_INVALID_CONTEXT);
    Context &context = *stack().back();
    require(context.alive, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    require(context.fault == CUDA_SUCCESS, context.fault);
    body(context);
    return CUDA_SUCCESS;
  } catch (const Error &error) {
    return error.code;
  } catch (const std::bad_alloc &) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

void require_device(CUdevice device) {
  require(device >= 0 && device < static_cast<int>(driver().contexts.size()), CUDA_ERROR_INVALID_DEVICE);
}

template <class T>
void require_pointer(T *pointer) {
  require(pointer != nullptr, CUDA_ERROR_INVALID_VALUE);
}

// A stream by its handle: 0 and 1 are the legacy one, 2 is the thread's own.
Stream &find(Context &context, Stream *handle) {
  const auto number = reinterpret_cast<uintptr_t>(handle);
  if (number <= 1) return *context.legacy;
  if (number == 2) {
    auto &mine = context.per_thread[std::this_thread::get_id()];
    if (!mine) mine = std::make_shared<Stream>(&context, false, true);
    return *mine;
  }
  const auto found = context.streams.find(handle);
  require(found != context.streams.end(), CUDA_ERROR_INVALID_HANDLE);
  return *found->second;
}

Event &find(Context &context, Event *handle) {
  require(driver().events.count(handle) != 0 && handle->context == &context, CUDA_ERROR_INVALID_HANDLE);
  return *handle;
}

template <class T>
T &known(const std::unordered_set<void *> &handles, T *handle) {
  require(handles.count(handle) != 0, CUDA_ERROR_INVALID_HANDLE);
  return *handle;
}

void check_red_zones(Context &context) {
  const std::string damage = memory().damage(context.device);
  if (damage.empty()) return;
  fprintf(stderr, "tvmdml's CUDA emulator: %s\n", damage.c_str());
  context.fault = CUDA_ERROR_ILLEGAL_ADDRESS;
}

// After a wait: what the work that was waited for did wrong.
void settle(Context &context) {
  if (context.fault == CUDA_SUCCESS) check_red_zones(context);
  require(context.fault == CUDA_SUCCESS, context.fault);
}

void require_live(CUdeviceptr address, size_t bytes) {
  if (!bytes) return;
  const Allocation *const at = memory().find(address);
  require(at && at->holds(address, bytes), CUDA_ERROR_INVALID_VALUE);
}

// A copy or a fill on a stream, which is done if the memory still is there when its turn comes.
void transfer(Context &context, Stream *handle, CUdeviceptr to, CUdeviceptr from, size_t bytes, Run run) {
  Stream &stream = find(context, handle);
  require_live(to, to ? bytes : 0);
  require_live(from, from ? bytes : 0);
  submit(stream, [=] {
    const auto live = [bytes](CUdeviceptr address) {
      const Allocation *const at = address && bytes ? memory().find(address) : nullptr;
      return !address || !bytes || (at && at->holds(address, bytes));
    };
    if (live(to) && live(from)) return run();
    fprintf(stderr, "tvmdml's CUDA emulator: a copy's memory was freed before its turn came\n");
    return int{CUDA_ERROR_ILLEGAL_ADDRESS};
  });
}

void *host(CUdeviceptr address) { return reinterpret_cast<void *>(address); }

// Memory of the device, in turn with a stream's work.
void allocate_in_turn(Context &context, CUdeviceptr *address, size_t bytes, Pool &pool, Stream *handle) {
  require_pointer(address);
  require(bytes != 0, CUDA_ERROR_INVALID_VALUE);
  const Stream &stream = find(context, handle);
  if (Capture *const capture = stream.capture ? stream.capture.get() : implicit(stream)) {
    capture->invalid = true;
    fail(stream.capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  }
  *address = memory().allocate(pool.device, bytes, &pool);
  require(*address != 0, CUDA_ERROR_OUT_OF_MEMORY);
}

void launch_kernel(Context &context, Function *function, Dim groups, Dim threads, unsigned dynamic_bytes, Stream *handle,
                   void **each, void **extra) {
  require_pointer(function);
  require(driver().modules.count(function->module) != 0 && function->module->context == &context, CUDA_ERROR_INVALID_HANDLE);
  Stream &stream = find(context, handle);
  const Kernel &kernel = *function->kernel;
  require(groups.x && groups.y && groups.z && threads.x && threads.y && threads.z, CUDA_ERROR_INVALID_VALUE);
  require(groups.x < 1u << 31 && groups.y < 1u << 16 && groups.z < 1u << 16, CUDA_ERROR_INVALID_VALUE);
  require(threads.x <= most_threads && threads.y <= most_threads && threads.z <= 64, CUDA_ERROR_INVALID_VALUE);
  const unsigned long all = static_cast<unsigned long>(threads.x) * threads.y * threads.z;
  require(all <= most_threads && all <= kernel.most_threads, CUDA_ERROR_INVALID_VALUE);
  require(function->shared_bytes + dynamic_bytes <= most_shared, CUDA_ERROR_INVALID_VALUE);
  require(kernel.bytes <= most_parameters, CUDA_ERROR_INVALID_VALUE);
  std::string parameters(kernel.bytes, '\0');
  if (extra) {
    require(!each, CUDA_ERROR_INVALID_VALUE);
    const void *buffer = nullptr;
    size_t bytes = 0;
    for (; *extra; extra += 2) {
      const auto what = reinterpret_cast<uintptr_t>(*extra);
      require(what == 1 || what == 2, CUDA_ERROR_INVALID_VALUE);
      if (what == 1) buffer = extra[1];
      else bytes = *static_cast<size_t *>(extra[1]);
    }
    require(bytes >= kernel.bytes && bytes < kernel.bytes + 16, CUDA_ERROR_INVALID_VALUE);  // some padding is no mistake
    require(buffer || !kernel.bytes, CUDA_ERROR_INVALID_VALUE);
    parameters.assign(static_cast<const char *>(buffer), kernel.bytes);
  } else if (kernel.count) {
    require_pointer(each);
    for (unsigned k = 0; k < kernel.count; k++) {
      require_pointer(each[k]);
      memcpy(&parameters[kernel.parameters[k].offset], each[k], kernel.parameters[k].bytes);
    }
  }
  submit(stream, launch(*function, groups, threads, std::move(parameters)));
}

// The attributes of a device that CUDA's header numbers so.
int attribute(int number, int device) {
  switch (number) {
    case 1: case 2: case 3: return most_threads;  // MAX_THREADS_PER_BLOCK, MAX_BLOCK_DIM_X, _Y
    case 4: return 64;                            // MAX_BLOCK_DIM_Z
    case 5: return 0x7fffffff;                    // MAX_GRID_DIM_X
    case 6: case 7: return 65535;                 // MAX_GRID_DIM_Y, _Z
    case 8: return most_shared;                   // MAX_SHARED_MEMORY_PER_BLOCK
    case 9: return 65536;                         // TOTAL_CONSTANT_MEMORY
    case 10: return 32;                           // WARP_SIZE
    case 12: case 82: return 65536;               // MAX_REGISTERS_PER_BLOCK, _PER_MULTIPROCESSOR
    case 13: case 36: return 1980000;             // CLOCK_RATE, MEMORY_CLOCK_RATE
    case 16: return 132;                          // MULTIPROCESSOR_COUNT
    case 31: case 40: case 41: return 1;          // CONCURRENT_KERNELS, ASYNC_ENGINE_COUNT, UNIFIED_ADDRESSING
    case 33: return device + 1;                   // PCI_BUS_ID
    case 37: return 5120;                         // GLOBAL_MEMORY_BUS_WIDTH
    case 38: return 50 << 20;                     // L2_CACHE_SIZE
    case 39: return 2048;                         // MAX_THREADS_PER_MULTIPROCESSOR
    case 75: return device_arch() / 10;           // COMPUTE_CAPABILITY_MAJOR
    case 76: return device_arch() % 10;           // COMPUTE_CAPABILITY_MINOR
    case 81: case 97: return 232448;              // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, _PER_BLOCK_OPTIN
    case 106: return 32;                          // MAX_BLOCKS_PER_MULTIPROCESSOR
    case 115: return 1;                           // MEMORY_POOLS_SUPPORTED
    default: require(number > 0 && number < 150, CUDA_ERROR_INVALID_VALUE); return 0;
  }
}

}  // namespace

// -- The driver and its devices -----------------------------------------------------------------------------------------

API cuInit(unsigned flags) {
  if (forked) return CUDA_ERROR_NOT_INITIALIZED;
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard<std::recursive_mutex> hold(driver().lock);
  if (started) return CUDA_SUCCESS;
  const long devices = setting("TVMDML_EMULATED_DEVICES", 1);
  if (devices < 1) return CUDA_ERROR_NO_DEVICE;
  driver().contexts = std::vector<Context>(static_cast<size_t>(devices));
  driver().pools = std::vector<Pool>(static_cast<size_t>(devices));
  for (int k = 0; k < devices; k++) context_of(k).device = pool_of(k).device = k;
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
  atexit([] { ended = true; });
  started = true;
  return CUDA_SUCCESS;
}

API cuDriverGetVersion(int *found) {
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  *found = version;
  return CUDA_SUCCESS;
}

API cuGetErrorName(CUresult code, const char **text) {
  switch (code) {
#define X(name, number, meaning) case number: return *text = #name, CUDA_SUCCESS;
    TVMDML_CODES(X)
#undef X
  }
  return *text = nullptr, CUDA_ERROR_INVALID_VALUE;
}

API cuGetErrorString(CUresult code, const char **text) {
  switch (code) {
#define X(name, number, meaning) case number: return *text = meaning, CUDA_SUCCESS;
    TVMDML_CODES(X)
#undef X
  }
  return *text = nullptr, CUDA_ERROR_INVALID_VALUE;
}

API cuDeviceGetCount(int *count) {
  return quick([&] {
    require_pointer(count);
    *count = static_cast<int>(driver().contexts.size());
  });
}

API cuDeviceGet(CUdevice *device, int ordinal) {
  return quick([&] {
    require_pointer(device);
    require_device(ordinal);
    *device = ordinal;
  });
}

API cuDeviceGetName(char *name, int room, CUdevice device) {
  return quick([&] {
    require_device(device);
    require(name && room > 0, CUDA_ERROR_INVALID_VALUE);
    snprintf(name, static_cast<size_t>(room), "%s", device_name);
  });
}

API cuDeviceGetAttribute(int *value, int number, CUdevice device) {
  return quick([&] {
    require_pointer(value);
    require_device(device);
    *value = attribute(number, device);
  });
}

API cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  return quick([&] {
    require_pointer(bytes);
    require_device(device);
    *bytes = Memory::limit();
  });
}

// -- Contexts ---------------------------------------------------------------------------------------------------------

API cuDevicePrimaryCtxRetain(Context **context, CUdevice device) {
  if (const Code code = state()) return code;
  const std::lock_guard<std::recursive_mutex> hold(driver().lock);
  return quick([&] {
    require_pointer(context);
    require_device(device);
    Context &found = context_of(device);
    if (!found.retained++) {
      found.legacy = std::make_shared<Stream>(&found, true, true);
      found.fault = CUDA_SUCCESS;
      found.alive = true;
    }
    *context = &found;
  });
}

API cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  if (const Code code = state()) return code;
  const std::lock_guard<std::recursive_mutex> hold(driver().lock);
  return quick([&] {
    require_device(device);
    Context &found = context_of(device);
    require(found.retained > 0, CUDA_ERROR_INVALID_CONTEXT);
    if (--found.retained) return;
    end(found);
    found.alive = false;
    memory().release_all(device);
    Pool &pool = pool_of(device);
    memory().trim(pool, 0);
    pool = {device};
  });
}

API cuCtxGetCurrent(Context **context) {
  return quick([&] {
    require_pointer(context);
    *context = stack().empty() ? nullptr : stack().back();
  });
}

API cuCtxPushCurrent_v2(Context *context) {
  return quick([&] {
    const auto &all = driver().contexts;
    require(context >= all.data() && context < all.data() + all.size(), CUDA_ERROR_INVALID_CONTEXT);
    require(context->alive, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    stack().push_back(context);
  });
}

API cuCtxPopCurrent_v2(Context **context) {
  return quick([&] {
    require(!stack().empty(), CUDA_ERROR_INVALID_CONTEXT);
    if (context) *context = stack().back();
    stack().pop_back();
  });
}

API cuCtxSetCurrent(Context *context) {
  return quick([&] {
    if (!stack().empty()) stack().pop_back();
    if (context) stack().push_back(context);
  });
}

API cuCtxSynchronize() {
  return in_context([&](Context &context) {
    for (const auto &stream : context.others()) {
      if (!stream->capture) continue;
      stream->capture->invalid = true;
      fail(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    finish(context);
    settle(context);
  });
}

// -- Streams ----------------------------------------------------------------------------------------------------------

API cuStreamCreate(Stream **stream, unsigned flags) {
  return in_context([&](Context &context) {
    require_pointer(stream);
    require(flags <= 1, CUDA_ERROR_INVALID_VALUE);
    const auto made = std::make_shared<Stream>(&context, false, flags == 0);
    context.streams[made.get()] = made;
    *stream = made.get();
  });
}

API cuStreamDestroy_v2(Stream *stream) {
  return in_context([&](Context &context) {
    require(context.streams.count(stream) != 0, CUDA_ERROR_INVALID_HANDLE);
    if (stream->capture) stream->capture->invalid = true, stream->capture->streams.erase(stream);
    reach(stream->end());
    context.streams.erase(stream);
  });
}

API cuStreamSynchronize(Stream *handle) {
  return in_context([&](Context &context) {
    Stream &stream = find(context, handle);
    if (Capture *const capture = stream.capture ? stream.capture.get() : implicit(stream)) {
      capture->invalid = true;
      fail(stream.capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    refuse_in_capture();
    if (stream.legacy) submit(stream, [] { return 0; });  // it waits for the blocking ones
    reach(stream.end());
    settle(context);
  });
}

API cuStreamQuery(Stream *handle) {
  return in_context([&](Context &context) {
    Stream &stream = find(context, handle);
    if (stream.capture) {
      stream.capture->invalid = true;
      fail(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    refuse_in_capture();
    require(poll(stream.end()), CUDA_ERROR_NOT_READY);
    settle(context);
  });
}

API cuStreamWaitEvent(Stream *stream, Event *event, unsigned) {
  return in_context([&](Context &context) { wait_event(find(context, stream), known(driver().events, event)); });
}

API cuStreamIsCapturing(Stream *handle, int *status) {
  return in_context([&](Context &context) {
    require_pointer(status);
    const Stream &stream = find(context, handle);
    require(!implicit(stream), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    *status = !stream.capture ? 0 : stream.capture->invalid ? 2 : 1;
  });
}

API cuStreamBeginCapture_v2(Stream *stream, int mode) {
  return in_context([&](Context &context) { begin_capture(find(context, stream), mode); });
}

API cuThreadExchangeStreamCaptureMode(int *mode) {
  return quick([&] {
    require(mode && *mode >= 0 && *mode <= 2, CUDA_ERROR_INVALID_VALUE);
    std::swap(*mode, thread_capture_mode());
  });
}

API cuStreamEndCapture(Stream *stream, Graph **graph) {
  return in_context([&](Context &context) {
    require_pointer(graph);
    *graph = nullptr;
    auto runs = end_capture(find(context, stream));
    driver().graphs.insert(*graph = new Graph{&context, std::move(runs)});
  });
}

API cuGraphInstantiateWithFlags(Graph **exec, Graph *graph, unsigned long long) {
  return in_context([&](Context &) {
    require_pointer(exec);
    driver().execs.insert(*exec = new Graph(known(driver().graphs, graph)));
  });
}

API cuGraphLaunch(Graph *exec, Stream *stream) {
  return in_context([&](Context &context) {
    const Graph &found = known(driver().execs, exec);
    submit(find(context, stream), [runs = found.runs, owner = found.context] {
      for (const Run &run : runs)
        if (const int code = run()) return code;
      return int{owner->fault};
    });
  });
}

API cuGraphExecDestroy(Graph *exec) {
  return in_context([&](Context &) {
    delete &known(driver().execs, exec);
    driver().execs.erase(exec);
  });
}

API cuGraphDestroy(Graph *graph) {
  return in_context([&](Context &) {
    delete &known(driver().graphs, graph);
    driver().graphs.erase(graph);
  });
}

// -- Events -----------------------------------------------------------------------------------------------------------

API cuEventCreate(Event **event, unsigned flags) {
  return in_context([&](Context &context) {
    require_pointer(event);
    driver().events.insert(*event = new Event{&context, (flags & 2) == 0, nullptr});
  });
}

API cuEventDestroy_v2(Event *event) {
  return in_context([&](Context &) {
    delete &known(driver().events, event);
    driver().events.erase(event);
  });
}

API cuEventRecord(Event *event, Stream *stream) {
  return in_context([&](Context &context) { record(find(context, event), find(context, stream)); });
}

API cuEventQuery(Event *event) {
  return in_context([&](Context &context) {
    const auto &record = known(driver().events, event).record;
    require(!record || !record->capture, CUDA_ERROR_CAPTURED_EVENT);
    refuse_in_capture();
    require(!record || poll(record->point), CUDA_ERROR_NOT_READY);
    settle(context);
  });
}

API cuEventSynchronize(Event *event) {
  return in_context([&](Context &context) {
    const auto &record = known(driver().events, event).record;
    require(!record || !record->capture, CUDA_ERROR_CAPTURED_EVENT);
    refuse_in_capture();
    if (record) reach(record->point);
    settle(context);
  });
}

API cuEventElapsedTime(float *milliseconds, Event *from, Event *to) {
  return in_context([&](Context &) {
    require_pointer(milliseconds);
    const Event &first = known(driver().events, from), &last = known(driver().events, to);
    require(first.timed && last.timed && first.record && last.record && first.context == last.context, CUDA_ERROR_INVALID_HANDLE);
    for (const Event *event : {&first, &last}) {
      const Event::Record &record = *event->record;
      require(!record.capture, CUDA_ERROR_CAPTURED_EVENT);
      require(record.point.stream->done >= record.point.number, CUDA_ERROR_NOT_READY);
    }
    *milliseconds = std::chrono::duration<float, std::milli>(last.record->time - first.record->time).count();
  });
}

// -- Memory -----------------------------------------------------------------------------------------------------------

API cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
  return in_context([&](Context &context) {
    require_pointer(address);
    require(bytes != 0, CUDA_ERROR_INVALID_VALUE);
    refuse_in_capture();
    *address = memory().allocate(context.device, bytes, nullptr);
    require(*address != 0, CUDA_ERROR_OUT_OF_MEMORY);
  });
}

API cuMemFree_v2(CUdeviceptr address) {
  return in_context([&](Context &context) {
    if (!address) return;
    refuse_in_capture();
    const Allocation *const at = memory().find(address);
    require(at && at->address == address, CUDA_ERROR_INVALID_VALUE);
    finish(context);  // CUDA waits here too
    settle(context);
    memory().release(address);
  });
}

API cuMemAllocAsync(CUdeviceptr *address, size_t bytes, Stream *stream) {
  return in_context([&](Context &context) { allocate_in_turn(context, address, bytes, pool_of(context.device), stream); });
}

API cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, Pool *pool, Stream *stream) {
  return in_context([&](Context &context) { allocate_in_turn(context, address, bytes, *pool, stream); });
}

API cuMemFreeAsync(CUdeviceptr address, Stream *handle) {
  return in_context([&](Context &context) {
    if (!address) return;
    Stream &stream = find(context, handle);
    const Allocation *const at = memory().find(address);
    require(at && at->address == address && at->pool, CUDA_ERROR_INVALID_VALUE);
    if (stream.capture) {
      stream.capture->invalid = true;
      fail(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    submit(stream, [address] {
      const Allocation *const gone = memory().find(address);
      if (!gone || gone->address != address) return int{CUDA_ERROR_ILLEGAL_ADDRESS};
      const std::string damage = gone->damage();
      if (!damage.empty()) fprintf(stderr, "tvmdml's CUDA emulator: %s\n", damage.c_str());
      memory().release(address);
      return int{damage.empty() ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS};
    });
  });
}

API cuDeviceGetDefaultMemPool(Pool **pool, CUdevice device) {
  return quick([&] {
    require_pointer(pool);
    require_device(device);
    *pool = &pool_of(device);
  });
}

struct CUmemPoolProps {
  int kind, handles, where, device;
};

API cuMemPoolCreate(Pool **pool, const CUmemPoolProps *properties) {
  return in_context([&](Context &) {
    require(pool && properties && properties->kind == 1 && properties->where == 1, CUDA_ERROR_INVALID_VALUE);
    require_device(properties->device);
    driver().made_pools.insert(*pool = new Pool{properties->device});
  });
}

API cuMemPoolDestroy(Pool *pool) {
  return in_context([&](Context &) {
    memory().trim(known(driver().made_pools, pool), 0);  // what is allocated from it is freed later: the pool itself stays
    driver().made_pools.erase(pool);
  });
}

API cuMemPoolSetAttribute(Pool *pool, int attribute, void *value) {
  return in_context([&](Context &) {
    require(pool && value && attribute >= 1 && attribute <= 8, CUDA_ERROR_INVALID_VALUE);
    if (attribute == 4) pool->kept = *static_cast<unsigned long long *>(value);  // RELEASE_THRESHOLD
  });
}

API cuMemPoolGetAttribute(Pool *pool, int attribute, void *value) {
  return in_context([&](Context &) {
    require(pool && value && attribute >= 1 && attribute <= 8, CUDA_ERROR_INVALID_VALUE);
    auto &number = *static_cast<unsigned long long *>(value);
    switch (attribute) {
      case 4: number = pool->kept; break;                       // RELEASE_THRESHOLD
      case 5: case 6: number = pool->used + pool->cached; break;  // RESERVED_MEM_CURRENT, _HIGH
      case 7: number = pool->used; break;                       // USED_MEM_CURRENT
      case 8: number = pool->most_used; break;                  // USED_MEM_HIGH
      default: *static_cast<int *>(value) = 1;
    }
  });
}

API cuMemPoolTrimTo(Pool *pool, size_t keep) {
  return in_context([&](Context &) {
    require_pointer(pool);
    memory().trim(*pool, keep > pool->used ? keep - pool->used : 0);
  });
}

API cuMemGetInfo_v2(size_t *free, size_t *total) {
  return in_context([&](Context &context) {
    require(free && total, CUDA_ERROR_INVALID_VALUE);
    *free = memory().free_bytes(context.device);
    *total = Memory::limit();
  });
}

API cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address) {
  return in_context([&](Context &) {
    require_pointer(value);
    const Allocation *const at = memory().find(address);
    require(at && at->holds(address, 1), CUDA_ERROR_INVALID_VALUE);
    switch (attribute) {
      case 1: *static_cast<Context **>(value) = at->pool ? nullptr : &context_of(at->device); break;  // CONTEXT
      case 2: *static_cast<unsigned *>(value) = 2; break;               // MEMORY_TYPE: the device's
      case 3: *static_cast<CUdeviceptr *>(value) = address; break;      // DEVICE_POINTER
      case 8: *static_cast<unsigned *>(value) = 0; break;               // IS_MANAGED
      case 9: *static_cast<int *>(value) = at->device; break;           // DEVICE_ORDINAL
      case 11: *static_cast<CUdeviceptr *>(value) = at->address; break;  // RANGE_START_ADDR
      case 12: *static_cast<size_t *>(value) = at->bytes; break;        // RANGE_SIZE
      default: fail(CUDA_ERROR_INVALID_VALUE);
    }
  });
}

API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, Stream *stream) {
  return in_context([&](Context &context) {
    require(from || !bytes, CUDA_ERROR_INVALID_VALUE);
    if (find(context, stream).capture || !lazy()) {
      return transfer(context, stream, to, 0, bytes, [=] { return memcpy(host(to), from, bytes), 0; });
    }
    // The host's memory is pageable: the driver has its content when the call returns.
    transfer(context, stream, to, 0, bytes, [to, data = std::string(static_cast<const char *>(from), bytes)] {
      return memcpy(host(to), data.data(), data.size()), 0;
    });
  });
}

// CUDA would wait for a copy to pageable memory. Nothing may count on that: with pinned memory it would not.
API cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, Stream *stream) {
  return in_context([&](Context &context) {
    require(to || !bytes, CUDA_ERROR_INVALID_VALUE);
    transfer(context, stream, 0, from, bytes, [=] { return memcpy(to, host(from), bytes), 0; });
  });
}

API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, Stream *stream) {
  return in_context([&](Context &context) {
    require((to && from) || !bytes, CUDA_ERROR_INVALID_VALUE);
    transfer(context, stream, to, from, bytes, [=] { return memmove(host(to), host(from), bytes), 0; });
  });
}

API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, Stream *stream) {
  return in_context([&](Context &context) {
    require(to || !bytes, CUDA_ERROR_INVALID_VALUE);
    transfer(context, stream, to, 0, bytes, [=] { return memset(host(to), value, bytes), 0; });
  });
}

// -- Kernels ----------------------------------------------------------------------------------------------------------

API cuModuleLoadData(Module **module, const void *image) {
  return in_context([&](Context &context) {
    require(module && image, CUDA_ERROR_INVALID_VALUE);
    refuse_in_capture();
    driver().modules.insert(*module = new Module(&context, static_cast<const char *>(image)));
  });
}

API cuModuleUnload(Module *module) {
  return in_context([&](Context &context) {
    refuse_in_capture();
    finish(context);
    delete &known(driver().modules, module);
    driver().modules.erase(module);
    settle(context);
  });
}

API cuModuleGetFunction(Function **function, Module *module, const char *name) {
  return in_context([&](Context &) {
    require(function && name, CUDA_ERROR_INVALID_VALUE);
    *function = &known(driver().modules, module).function(name);
  });
}

API cuFuncGetAttribute(int *value, int number, Function *function) {
  return in_context([&](Context &) {
    require(value && function, CUDA_ERROR_INVALID_VALUE);
    require(number >= 0 && number <= 15, CUDA_ERROR_INVALID_VALUE);
    switch (number) {
      case 0: *value = static_cast<int>(function->kernel->most_threads); break;  // MAX_THREADS_PER_BLOCK
      case 1: *value = static_cast<int>(function->shared_bytes); break;          // SHARED_SIZE_BYTES
      case 4: *value = 32; break;                                                // NUM_REGS
      case 5: case 6: *value = function->module->arch; break;                    // PTX_VERSION, BINARY_VERSION
      default: *value = 0;
    }
  });
}

API cuLaunchKernel(Function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned dynamic_bytes, Stream *stream, void **each, void **extra) {
  return in_context([&](Context &context) {
    launch_kernel(context, function, {gx, gy, gz}, {bx, by, bz}, dynamic_bytes, stream, each, extra);
  });
}

API cuLaunchKernelEx(const CUlaunchConfig *c, Function *function, void **each, void **extra) {
  return in_context([&](Context &context) {
    require(c && !c->numAttrs, CUDA_ERROR_INVALID_VALUE);
    const Dim groups = {c->gridDimX, c->gridDimY, c->gridDimZ}, threads = {c->blockDimX, c->blockDimY, c->blockDimZ};
    launch_kernel(context, function, groups, threads, c->sharedMemBytes, c->hStream, each, extra);
  });
}

// NVRTC asks for it in a process where it finds a driver, and does without where this has none.
API cuGetExportTable(const void **table, const void *) {
  if (!table) return CUDA_ERROR_INVALID_VALUE;
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

// -- The names without their versions, which only the header maps to these ------------------------------------------------

#define SAME(name, versioned, ...) extern "C" __attribute__((visibility("default"), alias(#versioned))) CUresult name(__VA_ARGS__);
SAME(cuDeviceTotalMem, cuDeviceTotalMem_v2, size_t *, CUdevice)
SAME(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, CUdevice)
SAME(cuCtxPushCurrent, cuCtxPushCurrent_v2, Context *)
SAME(cuCtxPopCurrent, cuCtxPopCurrent_v2, Context **)
SAME(cuStreamDestroy, cuStreamDestroy_v2, Stream *)
SAME(cuStreamBeginCapture, cuStreamBeginCapture_v2, Stream *, int)
SAME(cuEventDestroy, cuEventDestroy_v2, Event *)
SAME(cuMemAlloc, cuMemAlloc_v2, CUdeviceptr *, size_t)
SAME(cuMemFree, cuMemFree_v2, CUdeviceptr)
SAME(cuMemGetInfo, cuMemGetInfo_v2, size_t *, size_t *)
SAME(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, size_t, Stream *)
SAME(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, void *, CUdeviceptr, size_t, Stream *)
SAME(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr, size_t, Stream *)
