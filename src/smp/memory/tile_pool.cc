#include "smp/memory/tile_pool.h"

#include <algorithm>
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

using Memory = std::unique_ptr<std::byte[]>;

// The sets of one purpose.
struct Share {
  size_t sets_max = 0;
  size_t in_use = 0;
  size_t kept_sets = 0;
  std::map<uint64_t, std::vector<Memory>> kept;  // by bytes of the set
  bool is_wanted = false;                        // somebody waits for what is returned

  // Null when none of that size is kept.
  Memory TakeKept(uint64_t bytes) {
    const auto found = kept.find(bytes);
    if (found == kept.end()) return nullptr;
    Memory memory = std::move(found->second.back());
    found->second.pop_back();
    if (found->second.empty()) kept.erase(found);
    --kept_sets;
    return memory;
  }
  // Of a size other than that; null when there is none.
  Memory TakeOther(uint64_t bytes) {
    const auto other = std::ranges::find_if(kept, [&](auto& of) { return of.first != bytes; });
    return other == kept.end() ? nullptr : TakeKept(other->first);
  }
};

}  // namespace

struct TilePool::Shared {
  explicit Shared(Executor& of) : executor(of) {}

  Share& ShareOf(TilePurpose purpose) { return shares[static_cast<size_t>(purpose)]; }
  void Return(TilePurpose purpose, uint64_t bytes, Memory memory, std::shared_ptr<Shared> self);

  Executor& executor;
  std::mutex mutex;             // guards what follows
  std::array<Share, 2> shares;  // by purpose
  TilePool* pool = nullptr;     // null once it is gone
};

void TilePool::Shared::Return(TilePurpose purpose, uint64_t bytes, Memory memory,
                              std::shared_ptr<Shared> self) {
  Memory given_up;  // after the lock
  const std::lock_guard lock(mutex);
  Share& share = ShareOf(purpose);
  --share.in_use;
  // What was used last is of the size that is used next.
  if (share.kept_sets == kSetsKept) given_up = share.TakeOther(bytes);
  if (share.kept_sets < kSetsKept) {
    share.kept[bytes].push_back(std::move(memory));
    ++share.kept_sets;
  } else {
    given_up = std::move(memory);
  }
  if (pool == nullptr || !std::exchange(share.is_wanted, false)) return;
  executor.Post([self = std::move(self), purpose] {
    // It goes in turns of this executor alone.
    if (self->pool != nullptr) self->pool->Serve(purpose);
  });
}

TilePool::TilePool(Executor& executor, TileShares shares)
    : shared_(std::make_shared<Shared>(executor)) {
  shared_->ShareOf(TilePurpose::kEncoding).sets_max = shares.encoding;
  shared_->ShareOf(TilePurpose::kDecoding).sets_max = shares.decoding;
  shared_->pool = this;
}

TilePool::~TilePool() {
  const std::lock_guard lock(shared_->mutex);
  shared_->pool = nullptr;
}

void TilePool::Take(TilePurpose purpose, size_t tiles, uint64_t tile_bytes, Taken then) {
  auto& waiting = waiting_[static_cast<size_t>(purpose)];
  if (waiting.empty()) {
    if (TileSet set = TryTake(purpose, tiles, tile_bytes)) return then(std::move(set));
  }
  waiting.push_back({tiles, tile_bytes, std::move(then)});
}

TileSet TilePool::TryTake(TilePurpose purpose, size_t tiles, uint64_t tile_bytes) {
  TileSet set;
  set.tile_bytes_ = tile_bytes;
  set.stride_ = StrideOf(tile_bytes);
  const uint64_t bytes = tiles * set.stride_;
  Memory memory;
  Memory given_up;
  {
    const std::lock_guard lock(shared_->mutex);
    Share& share = shared_->ShareOf(purpose);
    share.is_wanted = share.in_use == share.sets_max;
    if (share.is_wanted) return TileSet();
    memory = share.TakeKept(bytes);
    // What is kept is of the share, too.
    if (memory == nullptr && share.in_use + share.kept_sets == share.sets_max) {
      given_up = share.TakeOther(bytes);
    }
    ++share.in_use;
  }
  given_up.reset();
  if (memory == nullptr) memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
  set.memory_ = {memory.release(), [shared = shared_, purpose, bytes](std::byte* returned) {
                   shared->Return(purpose, bytes, Memory(returned), shared);
                 }};
  return set;
}

void TilePool::Serve(TilePurpose purpose) {
  auto& waiting = waiting_[static_cast<size_t>(purpose)];
  while (!waiting.empty()) {
    TileSet set = TryTake(purpose, waiting.front().tiles, waiting.front().tile_bytes);
    if (!set) return;
    Taken then = std::move(waiting.front().then);
    waiting.pop_front();
    then(std::move(set));
  }
}

}  // namespace unreft::smp
