// Devices, streams, events, capture and errors of the fake runtime.

#include <cuda.h>

#include <cstring>
#include <utility>

#include "tests/fakes/cudart/world.h"

namespace unreft::fake_cudart {
namespace {

World& world() { return World::Get(); }

CUresult CtxGetCurrent(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(static_cast<uintptr_t>(Self().device) + 1);
  return CUDA_SUCCESS;
}

CUresult CtxGetId(CUcontext context, unsigned long long* id) {
  std::lock_guard lock(world().mutex);
  *id = world().lives[static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1];
  return CUDA_SUCCESS;
}

// The stream is not destroyed while something is pushed: its owner keeps it in the world.
cudaError_t WithStream(cudaStream_t handle, const std::function<cudaError_t(Stream&)>& body) {
  std::lock_guard lock(world().mutex);
  Stream* stream = world().FindStreamLocked(handle);
  return stream == nullptr ? world().FailLocked(cudaErrorInvalidResourceHandle) : body(*stream);
}

}  // namespace
}  // namespace unreft::fake_cudart

using namespace unreft::fake_cudart;  // NOLINT: the file is the C face of that namespace

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) {
  std::lock_guard lock(World::Get().mutex);
  *version = World::Get().driver;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

// Like the real one, leaves `count` alone when it fails.
cudaError_t cudaGetDeviceCount(int* count) {
  if (cudaError_t error = world().Enter("cudaGetDeviceCount"); error != cudaSuccess) return error;
  std::lock_guard lock(world().mutex);
  *count = world().devices;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = Self().device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (cudaError_t error = world().Enter("cudaSetDevice"); error != cudaSuccess) return error;
  std::lock_guard lock(world().mutex);
  if (device < 0 || device >= world().devices) return world().FailLocked(cudaErrorInvalidDevice);
  Self().device = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceReset(void) {
  std::lock_guard lock(world().mutex);
  world().ResetDeviceLocked(Self().device, cudaErrorContextIsDestroyed);
  return cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
  std::lock_guard lock(world().mutex);
  // An error of the context stays.
  if (auto it = world().sticky.find(Self().device); it != world().sticky.end()) return it->second;
  return std::exchange(Self().last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError(void) {
  std::lock_guard lock(world().mutex);
  auto it = world().sticky.find(Self().device);
  return it != world().sticky.end() ? it->second : Self().last_error;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorContextIsDestroyed:
      return "cudaErrorContextIsDestroyed";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "cudaErrorHostMemoryAlreadyRegistered";
    default:
      return "cudaErrorOfTheFake";
  }
}

const char* cudaGetErrorString(cudaError_t /*error*/) { return "said by the fake"; }

cudaError_t cudaDeviceSynchronize(void) {
  if (cudaError_t error = world().EnterUnsafe("cudaDeviceSynchronize"); error != cudaSuccess) {
    return error;
  }
  std::vector<std::shared_ptr<Mark>> marks;
  {
    std::lock_guard lock(world().mutex);
    for (auto& [stream, owner] : world().streams) {
      if (stream->device != Self().device || stream->destroyed) continue;
      auto mark = marks.emplace_back(std::make_shared<Mark>());
      stream->Push(nullptr, [mark](cudaError_t why) { mark->Reach(why); });
    }
  }
  for (const auto& mark : marks) {
    if (cudaError_t error = mark->Wait(); error != cudaSuccess) return world().Fail(error);
  }
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                             unsigned int /*version*/, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = nullptr;
  if (std::strcmp(symbol, "cuCtxGetCurrent") == 0) {
    *function = reinterpret_cast<void*>(&CtxGetCurrent);
  }
  if (std::strcmp(symbol, "cuCtxGetId") == 0) *function = reinterpret_cast<void*>(&CtxGetId);
  if (result != nullptr) {
    *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  return cudaSuccess;
}

// --- Streams ---

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned int flags) {
  if (cudaError_t error = world().EnterUnsafe("cudaStreamCreateWithFlags"); error != cudaSuccess) {
    return error;
  }
  auto stream = std::make_unique<Stream>(flags);
  stream->device = Self().device;
  std::lock_guard lock(world().mutex);
  stream->Delay(world().delay_max, world().delay_seed + world().streams.size());
  *handle = reinterpret_cast<cudaStream_t>(stream.get());
  world().streams.emplace(stream.get(), std::move(stream));
  return cudaSuccess;
}

// What it was given before is still done, as on a device.
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  if (cudaError_t error = world().Enter("cudaStreamDestroy"); error != cudaSuccess) return error;
  return WithStream(handle, [](Stream& stream) {
    stream.destroyed = true;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  if (cudaError_t error = world().EnterUnsafe("cudaStreamSynchronize"); error != cudaSuccess) {
    return error;
  }
  auto mark = std::make_shared<Mark>();
  const cudaError_t pushed = WithStream(handle, [&](Stream& stream) {
    stream.Push(nullptr, [mark](cudaError_t why) { mark->Reach(why); });
    return cudaSuccess;
  });
  if (pushed != cudaSuccess) return pushed;
  const cudaError_t error = mark->Wait();
  return error == cudaSuccess ? error : world().Fail(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  if (cudaError_t error = world().Enter("cudaStreamIsCapturing"); error != cudaSuccess)
    return error;
  return WithStream(handle, [&](Stream& stream) {
    *status = stream.invalidated ? cudaStreamCaptureStatusInvalidated
              : stream.capturing ? cudaStreamCaptureStatusActive
                                 : cudaStreamCaptureStatusNone;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  if (cudaError_t error = world().Enter("cudaStreamBeginCapture"); error != cudaSuccess)
    return error;
  return WithStream(handle, [&](Stream& stream) {
    stream.capturing = true;
    stream.invalidated = false;
    stream.capture_mode = mode;
    stream.capturer = std::this_thread::get_id();
    stream.captured = 0;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  if (cudaError_t error = world().Enter("cudaStreamEndCapture"); error != cudaSuccess) return error;
  *graph = nullptr;
  return WithStream(handle, [](Stream& stream) {
    stream.capturing = false;
    return stream.invalidated ? world().FailLocked(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, Self().capture_mode);
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* argument) {
  if (cudaError_t error = world().Enter("cudaLaunchHostFunc"); error != cudaSuccess) return error;
  return WithStream(handle, [&](Stream& stream) {
    if (!world().CapturesLocked(stream)) stream.Push([=] { function(argument); });
    return cudaSuccess;
  });
}

// --- Events ---

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned int /*flags*/) {
  if (cudaError_t error = world().EnterUnsafe("cudaEventCreateWithFlags"); error != cudaSuccess) {
    return error;
  }
  auto event = std::make_unique<Event>();
  event->device = Self().device;
  std::lock_guard lock(world().mutex);
  *handle = reinterpret_cast<cudaEvent_t>(event.get());
  world().events.emplace(event.get(), std::move(event));
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  if (cudaError_t error = world().Enter("cudaEventDestroy"); error != cudaSuccess) return error;
  std::lock_guard lock(world().mutex);
  Event* event = world().FindEventLocked(handle);
  if (event == nullptr) return world().FailLocked(cudaErrorInvalidResourceHandle);
  event->destroyed = true;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  if (cudaError_t error = world().Enter("cudaEventRecord"); error != cudaSuccess) return error;
  return WithStream(stream_handle, [&](Stream& stream) {
    Event* event = world().FindEventLocked(handle);
    if (event == nullptr || event->device != stream.device) {
      return world().FailLocked(cudaErrorInvalidResourceHandle);
    }
    event->captured = world().CapturesLocked(stream);
    if (event->captured) return cudaSuccess;
    event->mark = std::make_shared<Mark>();
    stream.Push(nullptr, [mark = event->mark](cudaError_t why) { mark->Reach(why); });
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream_handle, cudaEvent_t handle, unsigned int) {
  if (cudaError_t error = world().Enter("cudaStreamWaitEvent"); error != cudaSuccess) return error;
  return WithStream(stream_handle, [&](Stream& stream) {
    Event* event = world().FindEventLocked(handle);
    if (event == nullptr) return world().FailLocked(cudaErrorInvalidResourceHandle);
    if (event->captured) {
      world().ViolationLocked("a stream waits for an event of a capture");
      return world().FailLocked(cudaErrorStreamCaptureIsolation);
    }
    if (world().CapturesLocked(stream) || !event->mark) return cudaSuccess;
    stream.Push([mark = event->mark] { mark->Wait(); });
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  if (cudaError_t error = world().EnterUnsafe("cudaEventQuery"); error != cudaSuccess) return error;
  std::lock_guard lock(world().mutex);
  Event* event = world().FindEventLocked(handle);
  if (event == nullptr) return world().FailLocked(cudaErrorInvalidResourceHandle);
  if (!event->mark || event->mark->reached()) return cudaSuccess;
  return world().FailLocked(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  if (cudaError_t error = world().EnterUnsafe("cudaEventSynchronize"); error != cudaSuccess) {
    return error;
  }
  std::shared_ptr<Mark> mark;
  {
    std::lock_guard lock(world().mutex);
    Event* event = world().FindEventLocked(handle);
    if (event == nullptr) return world().FailLocked(cudaErrorInvalidResourceHandle);
    mark = event->mark;
  }
  const cudaError_t error = mark ? mark->Wait() : cudaSuccess;
  return error == cudaSuccess ? error : world().Fail(error);
}
}
