#include "smp/memory/tile_pool.h"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace unreft::smp {
namespace {

// An odd number of cache lines.
constexpr uint64_t kPadding = 67 * 64;

// Of small tiles it would be most of the memory.
uint64_t StrideOf(uint64_t tile_bytes) {
  return tile_bytes < kPadding ? tile_bytes : tile_bytes + kPadding;
}

}  // namespace

struct TilePool::Kept {
  std::mutex mutex;
  std::map<uint64_t, std::vector<std::unique_ptr<std::byte[]>>> sets;  // by bytes of the set
};

TilePool::TilePool() : kept_(std::make_shared<Kept>()) {}

TileSet TilePool::Take(size_t tiles, uint64_t tile_bytes) {
  TileSet set;
  set.tile_bytes_ = tile_bytes;
  set.stride_ = StrideOf(tile_bytes);
  const uint64_t bytes = tiles * set.stride_;
  std::unique_ptr<std::byte[]> memory;
  {
    const std::lock_guard lock(kept_->mutex);
    auto& sets = kept_->sets[bytes];
    if (!sets.empty()) {
      memory = std::move(sets.back());
      sets.pop_back();
    }
  }
  if (memory == nullptr) memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
  set.memory_ = {memory.release(), [kept = kept_, bytes](std::byte* returned) {
                   std::unique_ptr<std::byte[]> own(returned);
                   const std::lock_guard lock(kept->mutex);
                   auto& sets = kept->sets[bytes];
                   if (sets.size() < kSetsKept) sets.push_back(std::move(own));
                 }};
  return set;
}

}  // namespace unreft::smp
