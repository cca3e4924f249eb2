// Memory, copies and the test's controls of the fake runtime.

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/fakes/cudart/world.h"

namespace unreft::fake_cudart {
namespace {

constexpr uintptr_t kPage = 4096;

World& world() { return World::Get(); }

struct Copy {
  void* target = nullptr;
  const void* source = nullptr;
  size_t bytes = 0;
};

bool IsMapped(uintptr_t begin, size_t bytes) {
  std::vector<unsigned char> resident(bytes / kPage + 1);
  return mincore(reinterpret_cast<void*>(begin), bytes, resident.data()) == 0;
}

std::string Described(const Copy& copy) {
  return std::to_string(copy.bytes) + " bytes at " +
         std::to_string(reinterpret_cast<uintptr_t>(copy.target));
}

// Whether one end of a copy lies in memory that it may lie in; `what` names that end.
bool EndIsRightLocked(const void* at, const Copy& copy, bool on_device, const char* what) {
  if (on_device) {
    if (World::Holds(world().device_memory, at, copy.bytes) != nullptr) return true;
    world().ViolationLocked(std::string(what) + " of a copy of " + Described(copy) +
                            " is not in one allocation of the device");
    return false;
  }
  if (World::Holds(world().pinned_memory, at, copy.bytes) != nullptr) return true;
  world().ViolationLocked(std::string(what) + " of a copy of " + Described(copy) +
                          (World::Touches(world().pinned_memory, at, copy.bytes)
                               ? " is pinned in parts"
                               : " is not pinned"));
  return false;
}

// A bit that is to arrive otherwise than it was sent. Takes no lock, see world.h.
void FlipIfMeant(const Copy& copy) {
  uintptr_t at = world().flip_at.load(std::memory_order_relaxed);
  for (const void* end : {copy.source, static_cast<const void*>(copy.target)}) {
    const uintptr_t offset = at - reinterpret_cast<uintptr_t>(end);
    if (at == 0 || offset >= copy.bytes) continue;
    static_cast<unsigned char*>(copy.target)[offset] ^= 1;
    world().flip_at.compare_exchange_strong(at, 0, std::memory_order_relaxed);
    return;
  }
}

bool IsDeviceLocked(const void* at) { return World::Touches(world().device_memory, at, 1); }

// The kind is that of the first; a batch mixes none here.
cudaError_t EnqueueLocked(Stream& stream, std::vector<Copy> copies) {
  const bool from_device = IsDeviceLocked(copies.front().source);
  const bool to_device = IsDeviceLocked(copies.front().target);
  for (const Copy& copy : copies) {
    if (!EndIsRightLocked(copy.source, copy, from_device, "the source") ||
        !EndIsRightLocked(copy.target, copy, to_device, "the target")) {
      return world().FailLocked(cudaErrorInvalidValue);
    }
  }
  if (world().CapturesLocked(stream)) return cudaSuccess;
  // A batch has no order within.
  std::shuffle(copies.begin(), copies.end(), std::minstd_rand(copies.size()));
  const bool waits = from_device && !to_device;
  stream.Push([copies = std::move(copies), waits, crosses = from_device != to_device] {
    if (waits) world().WaitUntilReleased();
    for (const Copy& copy : copies) {
      std::memcpy(copy.target, copy.source, copy.bytes);
      if (crosses) FlipIfMeant(copy);
    }
  });
  return cudaSuccess;
}

cudaError_t Enqueue(cudaStream_t handle, std::vector<Copy> copies) {
  std::lock_guard lock(world().mutex);
  Stream* stream = world().FindStreamLocked(handle);
  if (stream == nullptr) return world().FailLocked(cudaErrorInvalidResourceHandle);
  return EnqueueLocked(*stream, std::move(copies));
}

cudaError_t Allocate(std::map<uintptr_t, Range>& ranges, void** at, size_t bytes) {
  auto block = std::make_unique<std::vector<std::byte>>(bytes);
  std::lock_guard lock(world().mutex);
  *at = block->data();
  const auto address = reinterpret_cast<uintptr_t>(*at);
  ranges[address] = {bytes, Self().device, false};
  world().blocks[address] = std::move(block);
  return cudaSuccess;
}

cudaError_t Free(std::map<uintptr_t, Range>& ranges, void* at) {
  if (at == nullptr) return cudaSuccess;
  if (cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) return error;
  std::lock_guard lock(world().mutex);
  const auto address = reinterpret_cast<uintptr_t>(at);
  if (ranges.erase(address) == 0) return world().FailLocked(cudaErrorInvalidValue);
  world().blocks.erase(address);
  return cudaSuccess;
}

}  // namespace
}  // namespace unreft::fake_cudart

using namespace unreft::fake_cudart;  // NOLINT: the file is the C face of that namespace

extern "C" {

cudaError_t cudaMalloc(void** at, size_t bytes) {
  if (cudaError_t error = world().EnterUnsafe("cudaMalloc"); error != cudaSuccess) return error;
  return Allocate(world().device_memory, at, bytes);
}

cudaError_t cudaFree(void* at) {
  if (cudaError_t error = world().EnterUnsafe("cudaFree"); error != cudaSuccess) return error;
  return Free(world().device_memory, at);
}

cudaError_t cudaHostAlloc(void** at, size_t bytes, unsigned int) {
  if (cudaError_t error = world().EnterUnsafe("cudaHostAlloc"); error != cudaSuccess) return error;
  return Allocate(world().pinned_memory, at, bytes);
}

cudaError_t cudaFreeHost(void* at) {
  if (cudaError_t error = world().EnterUnsafe("cudaFreeHost"); error != cudaSuccess) return error;
  return Free(world().pinned_memory, at);
}

// Whole pages, none of which is pinned already.
cudaError_t cudaHostRegister(void* at, size_t bytes, unsigned int /*flags*/) {
  if (cudaError_t error = world().EnterUnsafe("cudaHostRegister"); error != cudaSuccess) {
    return error;
  }
  std::lock_guard lock(world().mutex);
  if (bytes == 0) return world().FailLocked(cudaErrorInvalidValue);
  const uintptr_t begin = reinterpret_cast<uintptr_t>(at) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(at) + bytes + kPage - 1) / kPage * kPage;
  if (!IsMapped(begin, end - begin)) return world().FailLocked(cudaErrorInvalidValue);
  for (const auto& [address, range] : world().pinned_memory) {
    if (range.registered && address / kPage * kPage < end && begin < address + range.bytes) {
      return world().FailLocked(cudaErrorHostMemoryAlreadyRegistered);
    }
  }
  if (world().registered_bytes + bytes > world().pinned_max) {
    return world().FailLocked(cudaErrorMemoryAllocation);
  }
  world().registered_bytes += bytes;
  world().pinned_memory[reinterpret_cast<uintptr_t>(at)] = {bytes, Self().device, true};
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* at) {
  if (cudaError_t error = world().EnterUnsafe("cudaHostUnregister"); error != cudaSuccess) {
    return error;
  }
  std::lock_guard lock(world().mutex);
  auto it = world().pinned_memory.find(reinterpret_cast<uintptr_t>(at));
  if (it == world().pinned_memory.end() || !it->second.registered) {
    return world().FailLocked(cudaErrorHostMemoryNotRegistered);
  }
  // A copy to a later mapping there would go to the pages of this one.
  if (!IsMapped(it->first / kPage * kPage, it->second.bytes)) {
    world().ViolationLocked("memory was unmapped while it was registered");
  }
  world().registered_bytes -= it->second.bytes;
  world().pinned_memory.erase(it);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* at) {
  if (cudaError_t error = world().Enter("cudaPointerGetAttributes"); error != cudaSuccess) {
    return error;
  }
  std::lock_guard lock(world().mutex);
  *attributes = {};
  attributes->type = cudaMemoryTypeUnregistered;
  if (const Range* range = World::Holds(world().device_memory, at, 1)) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = range->device;
  } else if (const Range* pinned = World::Holds(world().pinned_memory, at, 1)) {
    attributes->type = cudaMemoryTypeHost;
    attributes->device = pinned->device;
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  if (cudaError_t error = world().Enter("cudaMemcpyAsync"); error != cudaSuccess) return error;
  return Enqueue(stream, {{target, source, bytes}});
}

cudaError_t cudaMemcpyBatchAsync(void* const* targets, const void* const* sources,
                                 const size_t* sizes, size_t count,
                                 cudaMemcpyAttributes* attributes, size_t* first,
                                 size_t attribute_count, cudaStream_t stream) {
  if (cudaError_t error = world().Enter("cudaMemcpyBatchAsync"); error != cudaSuccess) return error;
  const bool right = count > 0 && attribute_count == 1 && first[0] == 0 && stream != nullptr &&
                     stream != cudaStreamLegacy &&
                     attributes[0].srcAccessOrder == cudaMemcpySrcAccessOrderStream;
  if (!right) {
    world().Violation("a batch of copies with wrong arguments");
    return world().Fail(cudaErrorInvalidValue);
  }
  std::vector<Copy> copies;
  for (size_t i = 0; i < count; ++i) copies.push_back({targets[i], sources[i], sizes[i]});
  return Enqueue(stream, std::move(copies));
}

cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes, cudaStream_t handle) {
  if (cudaError_t error = world().Enter("cudaMemsetAsync"); error != cudaSuccess) return error;
  std::lock_guard lock(world().mutex);
  Stream* stream = world().FindStreamLocked(handle);
  if (stream == nullptr) return world().FailLocked(cudaErrorInvalidResourceHandle);
  if (World::Holds(world().device_memory, target, bytes) == nullptr) {
    return world().FailLocked(cudaErrorInvalidValue);
  }
  if (!world().CapturesLocked(*stream)) {
    stream->Push([=] { std::memset(target, value, bytes); });
  }
  return cudaSuccess;
}

// --- What a test can do ---

void fakecuda_restart(int devices) { world().Restart(devices); }

void fakecuda_set_driver(int version) {
  std::lock_guard lock(world().mutex);
  world().driver = version;
}

void fakecuda_fail(const char* function, int nth, cudaError_t error) {
  std::lock_guard lock(world().mutex);
  world().faults[function] = {nth, error, cudaSuccess};
}

void fakecuda_fail_always(const char* function, cudaError_t error) {
  std::lock_guard lock(world().mutex);
  world().faults[function] = {0, cudaSuccess, error};
}

void fakecuda_exempt_thread(int exempt) { Self().exempt = exempt != 0; }

void fakecuda_break(cudaError_t error) {
  std::lock_guard lock(world().mutex);
  world().sticky[Self().device] = error;
  world().DropLocked(Self().device, error);
}

void fakecuda_limit_pinned(size_t bytes) {
  std::lock_guard lock(world().mutex);
  world().pinned_max = bytes;
}

void fakecuda_hold_copies(void) {
  std::lock_guard lock(world().hold_mutex);
  world().held = true;
}

void fakecuda_release_copies(void) {
  std::lock_guard lock(world().hold_mutex);
  world().held = false;
  world().hold_changed.notify_all();
}

void fakecuda_delay(unsigned microseconds_max, unsigned seed) {
  std::lock_guard lock(world().mutex);
  world().delay_max = microseconds_max;
  world().delay_seed = seed;
  for (auto& [stream, owner] : world().streams) stream->Delay(microseconds_max, ++seed);
}

int fakecuda_calls(const char* function) {
  std::lock_guard lock(world().mutex);
  return world().calls[function];
}

size_t fakecuda_pinned_bytes(void) {
  std::lock_guard lock(world().mutex);
  return world().registered_bytes;
}

int fakecuda_captured(cudaStream_t stream) {
  std::lock_guard lock(world().mutex);
  Stream* found = world().FindStreamLocked(stream);
  return found == nullptr ? -1 : found->captured;
}

int fakecuda_non_blocking_streams(void) {
  std::lock_guard lock(world().mutex);
  int count = 0;
  for (auto& [stream, owner] : world().streams) {
    count += (stream->flags & cudaStreamNonBlocking) != 0 && !stream->destroyed;
  }
  return count;
}

const char* fakecuda_violations(void) {
  static thread_local std::string text;
  std::lock_guard lock(world().mutex);
  text = world().violations;
  return text.c_str();
}
}
