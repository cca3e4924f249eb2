// TilePool: the daemon's own memory that blocks of a stripe are read into and coded in.
//
// A set of tiles has one tile per chunk. Tiles of a set lie a padded stride apart, since tiles a
// power of two apart would share sets of the caches. Memory is used again as it is, neither zeroed
// nor given back to the system meanwhile.
//
// So many sets exist at most, and each purpose has a share of its own of them: parities that are
// kept for a slow holder take nothing of what decoding needs, and neither ever waits for the other.
#pragma once

#include <absl/functional/any_invocable.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "base/executor.h"
#include "smp/memory/memory_plan.h"

namespace unreft::smp {

// A set of tiles, of whatever content. Returns its memory at its end, on any thread, also when the
// pool is gone.
class TileSet {
 public:
  TileSet() = default;  // none
  TileSet(TileSet&& other) = default;
  TileSet& operator=(TileSet&& other) = default;

  explicit operator bool() const { return memory_ != nullptr; }

  // Of `tile_bytes` bytes.
  std::span<std::byte> operator[](size_t index) const {
    return {memory_.get() + index * stride_, tile_bytes_};
  }

 private:
  friend class TilePool;
  std::shared_ptr<std::byte> memory_;
  uint64_t tile_bytes_ = 0;
  uint64_t stride_ = 0;
};

enum class TilePurpose : uint8_t { kEncoding, kDecoding };

// Single-threaded on the executor given at construction.
class TilePool {
 public:
  using Taken = absl::AnyInvocable<void(TileSet)>;

  // Keeps so many sets of a purpose for the next who takes one.
  static constexpr size_t kSetsKept = 8;

  // The executor outlives this.
  TilePool(Executor& executor, TileShares shares);
  ~TilePool();
  TilePool(const TilePool&) = delete;
  TilePool& operator=(const TilePool&) = delete;

  // `then` is called inline where a set is to be had now and nobody waits for one; else in a turn,
  // in the order of asking, when it is. It is not called once the pool is gone.
  void Take(TilePurpose purpose, size_t tiles, uint64_t tile_bytes, Taken then);

 private:
  struct Shared;  // with the sets that are in use
  struct Waiting {
    size_t tiles = 0;
    uint64_t tile_bytes = 0;
    Taken then;
  };

  // None while the whole share is in use: then Serve runs when some of it is returned.
  TileSet TryTake(TilePurpose purpose, size_t tiles, uint64_t tile_bytes);
  void Serve(TilePurpose purpose);

  std::shared_ptr<Shared> shared_;
  std::array<std::deque<Waiting>, 2> waiting_;  // by purpose
};

}  // namespace unreft::smp
