// TilePool: the daemon's own memory that blocks of a stripe are read into and coded in.
//
// A set of tiles has one tile per chunk. Tiles of a set lie a padded stride apart, since tiles a
// power of two apart would share sets of the caches. Memory is used again as it is, neither zeroed
// nor given back to the system meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace unreft::smp {

// A set of tiles, of whatever content. Returns its memory at its end, on any thread, also when the
// pool is gone.
class TileSet {
 public:
  TileSet() = default;  // none
  TileSet(TileSet&& other) = default;
  TileSet& operator=(TileSet&& other) = default;

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

// Thread-safe.
class TilePool {
 public:
  // Keeps so many sets of a size for the next who takes one.
  static constexpr size_t kSetsKept = 8;

  TilePool();

  TileSet Take(size_t tiles, uint64_t tile_bytes);

 private:
  struct Kept;
  std::shared_ptr<Kept> kept_;
};

}  // namespace unreft::smp
