// CudaPins: host memory that copies go to, registered with CUDA in the background.
//
//   Pin ──▶ thread: chunk, chunk, ... ──▶ all registered
//   last reference gone ──▶ thread: unregister, then let go of the owner, which may unmap
//
// Registering a whole slot in one call would hold up every CUDA call of the process for as long, so
// it goes in chunks, and copies go through pinned buffers until theirs is registered. Memory is
// always unregistered before it is unmapped: a copy to what is mapped there later would go to the
// old pages. Thread-safe.
#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "snapshot/cuda_device.h"

namespace unreft::snapshot {

class CudaPins {
 public:
  CudaPins(std::shared_ptr<const CudaDevice> device, size_t chunk_bytes);
  // Unregisters all.
  ~CudaPins();

  // Registers `bytes`, which `owner` keeps mapped, until what is returned is let go. Memory that
  // does not begin at a page is left alone.
  std::shared_ptr<void> Pin(std::shared_ptr<const void> owner, std::span<std::byte> bytes);

  // Whether the byte at `at` is registered, and up to where what is said of it holds: a copy may
  // not go beyond.
  struct Run {
    bool pinned = false;
    uintptr_t end = UINTPTR_MAX;
  };
  Run Find(const std::byte* at) const;

  struct Progress {
    uint64_t bytes = 0;    // asked for
    uint64_t pinned = 0;   // of these
    bool busy = false;     // more is being registered, or unregistered
    absl::Status refused;  // why some are not: the newest reason
  };
  Progress progress() const;

 private:
  class State;
  const std::shared_ptr<State> state_;
};

}  // namespace unreft::snapshot
