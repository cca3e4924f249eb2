// Plans of worlds that are drawn, against a restore of byte by byte.

#include "recovery/restore_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "layout/capture_plan.h"
#include "tests/unit/layout_testing.h"
#include "tests/unit/recovery/planner_testing.h"

namespace unreft::recovery {
namespace {

using layout::Box;
using layout::BoxOf;

// The planner against a store of bytes: every byte of the global tensors is a number of its own,
// slabs hold them as plans say, and pieces are executed into targets.
class World {
 public:
  explicit World(Random& random) : random_(random) {
    for (int t = 0; t < 3; ++t) AddTensor("t" + std::to_string(t));
    DropSome();
    for (size_t i = 0; i < store_.parts.size(); ++i) {  // parts come in no order
      std::swap(store_.parts[i], store_.parts[random_.Below(store_.parts.size())]);
    }
    if (random_.OneIn(2)) {
      for (uint32_t slab = 0; slab < next_slab_; ++slab) {
        if (random_.OneIn(3)) preferred_.push_back(slab);
      }
      for (uint32_t& slab : preferred_) {  // nor do these
        std::swap(slab, preferred_[random_.Below(preferred_.size())]);
      }
    }
    MakeTargets();
  }

  void Check() {
    const auto plan = PlanRestore(store_.parts, targets_, preferred_);
    if (IsAnyMissing()) {
      ASSERT_FALSE(plan.ok());
      const bool is_expected = absl::IsDataLoss(plan.status()) || absl::IsNotFound(plan.status());
      ASSERT_TRUE(is_expected) << plan.status();
      return;
    }
    ASSERT_TRUE(plan.ok()) << plan.status();
    CheckBytes(*plan);
    CheckForm(*plan);
  }
  bool IsAnyMissing() const {
    for (const TensorSpec& target : targets_) {
      for (const auto& holders : HoldersOfBytes(target)) {
        if (holders.empty()) return true;
      }
    }
    return false;
  }
  // With more than one row, or all.
  size_t CountPieces(uint64_t rows_min) const {
    const auto plan = PlanRestore(store_.parts, targets_, preferred_);
    return static_cast<size_t>(std::ranges::count_if(
        *plan, [&](const PlanPiece& piece) { return piece.rows >= rows_min; }));
  }

 private:
  // A byte of a global tensor, for all the world.
  using Byte = std::tuple<std::string, uint64_t>;
  struct Place {
    uint32_t slab;
    uint64_t offset;
    auto operator<=>(const Place&) const = default;
  };

  void AddTensor(const std::string& name) {
    const Dims shape = RandomShape(random_, 3, 6);
    const Dtype dtype = random_.OneIn(2) ? Dtype::kInt8 : Dtype::kInt16;
    shapes_.push_back(Whole(name, shape, 0, 1, dtype));
    for (const Box& box : RandomShards(random_, shape)) {
      const auto count = static_cast<uint32_t>(1 + random_.Below(3));
      const bool is_full = random_.OneIn(2);
      for (uint32_t i = 0; i < count; ++i) {
        AddShard(Spec(name, shape, box.offset, box.extent, i, count, dtype), is_full);
      }
    }
  }

  // Captured whole, or cut at random elements as sharded capture would at larger sizes.
  void AddShard(const TensorSpec& spec, bool is_full) {
    const uint32_t slab =
        random_.OneIn(2) ? next_slab_++ : static_cast<uint32_t>(random_.Below(next_slab_));
    const uint64_t element = DtypeBytes(spec.dtype);
    const uint64_t elements = ShardElements(spec);
    const uint64_t begin = is_full ? 0 : elements * spec.replica_index / spec.replica_count;
    const uint64_t end =
        is_full ? elements : elements * (spec.replica_index + 1) / spec.replica_count;
    if (begin == end) return;
    uint64_t& slab_end = slab_ends_[slab];
    store_.Add(spec, slab, begin * element, (end - begin) * element, slab_end);
    const StoredPart& part = store_.parts.back();
    const Box box = BoxOf(spec);
    ForEachElement(box, [&](const Dims& index) {
      for (uint64_t b = 0; b < element; ++b) {
        const uint64_t at = PositionIn(box, index) * element + b;
        if (at < part.shard_begin || at >= part.shard_begin + part.bytes) continue;
        slab_bytes_[{slab, slab_end + (at - part.shard_begin)}] = ByteOf(spec, index, b);
      }
    });
    slab_end += part.bytes;
    if (random_.OneIn(2)) slab_end += random_.Below(100);
  }

  void DropSome() {
    if (!random_.OneIn(4) || store_.parts.empty()) return;
    const size_t victim = random_.Below(store_.parts.size());
    store_.parts.erase(store_.parts.begin() + static_cast<ptrdiff_t>(victim));
  }

  void MakeTargets() {
    for (const TensorSpec& whole : shapes_) {
      for (const Box& box : RandomShards(random_, whole.global_shape)) {
        if (random_.OneIn(4)) continue;
        TensorSpec target = whole;
        target.offset = box.offset;
        target.extent = box.extent;
        targets_.push_back(target);
        if (random_.OneIn(8)) targets_.push_back(target);  // wanted twice
      }
    }
  }

  static Byte ByteOf(const TensorSpec& spec, const Dims& index, uint64_t byte) {
    const Box whole{Dims(spec.global_shape.size(), 0), spec.global_shape};
    return {spec.name, PositionIn(whole, index) * DtypeBytes(spec.dtype) + byte};
  }

  std::vector<Byte> BytesOf(const TensorSpec& target) const {
    std::vector<Byte> bytes;
    ForEachElement(BoxOf(target), [&](const Dims& index) {
      for (uint64_t b = 0; b < DtypeBytes(target.dtype); ++b)
        bytes.push_back(ByteOf(target, index, b));
    });
    return bytes;
  }

  // Of every byte of the target, where it is stored: the naive way, part by part, byte by byte.
  std::vector<std::vector<Place>> HoldersOfBytes(const TensorSpec& target) const {
    std::map<Byte, std::vector<Place>> holders;
    for (const StoredPart& part : store_.parts) {
      if (part.spec->name != target.name) continue;
      for (uint64_t i = 0; i < part.bytes; ++i) {
        const Place place{part.slab, part.slab_offset + i};
        holders[slab_bytes_.at(place)].push_back(place);
      }
    }
    std::vector<std::vector<Place>> result;
    for (const Byte& byte : BytesOf(target)) result.push_back(holders[byte]);
    return result;
  }

  uint32_t BestSlab(const std::vector<Place>& holders) const {
    const auto key = [&](const Place& place) {
      const auto preferred = std::find(preferred_.begin(), preferred_.end(), place.slab);
      return std::pair(preferred - preferred_.begin(), place.slab);
    };
    return std::min_element(holders.begin(), holders.end(),
                            [&](const Place& a, const Place& b) { return key(a) < key(b); })
        ->slab;
  }

  void CheckBytes(const std::vector<PlanPiece>& pieces) const {
    for (uint32_t t = 0; t < targets_.size(); ++t) {
      const std::vector<Byte> wanted = BytesOf(targets_[t]);
      const auto holders = HoldersOfBytes(targets_[t]);
      std::vector<int> written(wanted.size(), 0);
      for (const PlanPiece& piece : pieces) {
        if (piece.target != t) continue;
        ASSERT_TRUE(PieceFits(piece, UINT64_MAX, wanted.size()));
        ForEachRowIn(piece, 0, UINT64_MAX, [&](uint64_t from, uint64_t to, uint64_t bytes) {
          for (uint64_t i = 0; i < bytes; ++i) {
            ASSERT_EQ(slab_bytes_.at({piece.source, from + i}), wanted[to + i]);
            ASSERT_EQ(piece.source, BestSlab(holders[to + i]));
            ++written[to + i];
          }
        });
      }
      ASSERT_EQ(std::count(written.begin(), written.end(), 1), std::ssize(written));
    }
  }

  static void CheckForm(const std::vector<PlanPiece>& pieces) {
    for (size_t i = 1; i < pieces.size(); ++i) {
      ASSERT_LE(std::tie(pieces[i - 1].source, pieces[i - 1].source_offset),
                std::tie(pieces[i].source, pieces[i].source_offset));
    }
    for (const PlanPiece& a : pieces) {
      for (const PlanPiece& b : pieces) {
        ASSERT_FALSE(a.rows == 1 && b.rows == 1 && a.source == b.source && a.target == b.target &&
                     a.source_offset + a.bytes == b.source_offset &&
                     a.target_offset + a.bytes == b.target_offset)
            << "not merged";
      }
    }
  }

  Random& random_;
  Store store_;
  std::vector<TensorSpec> shapes_;
  std::vector<TensorSpec> targets_;
  std::vector<uint32_t> preferred_;
  uint32_t next_slab_ = 1;
  std::map<uint32_t, uint64_t> slab_ends_;
  std::map<Place, Byte> slab_bytes_;
};

TEST(RestorePlannerWorldTest, AgreesWithByteByByteInRandomWorlds) {
  constexpr uint64_t kWorlds = 10'000;
  uint64_t missing = 0;
  size_t pieces = 0;
  size_t with_rows = 0;
  for (uint64_t seed = 0; seed < kWorlds; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    World world(random);
    ASSERT_NO_FATAL_FAILURE(world.Check());
    if (world.IsAnyMissing()) {
      ++missing;
    } else {
      pieces += world.CountPieces(1);
      with_rows += world.CountPieces(2);
    }
  }
  EXPECT_GT(missing, kWorlds / 30);
  EXPECT_LT(missing, kWorlds / 3 * 2);
  EXPECT_GT(pieces, 3 * kWorlds);
  EXPECT_GT(with_rows, kWorlds);
}

TEST(RestorePlannerWorldTest, PutsTogetherWhatCapturePlansTookApart) {
  // 3 replicas of 2 shards capture a third each; a lone process restores all of it.
  Store store;
  uint32_t slab = 0;
  for (uint64_t shard = 0; shard < 2; ++shard) {
    for (uint32_t replica = 0; replica < 3; ++replica, ++slab) {
      const auto table = *layout::TensorTable::Create(
          {Spec("w", {2, 5000}, {shard, 0}, {1, 5000}, replica, 3), Whole("b", {7}, slab, 6)});
      const auto plan = layout::CapturePlan::Make(table, layout::CaptureMode::kSharded);
      for (const auto& part : plan.parts()) {
        store.Add(table.specs()[part.tensor], slab, part.shard_begin, part.bytes, part.slab_offset);
      }
    }
  }
  const std::vector<TensorSpec> targets = {Whole("w", {2, 5000}), Whole("b", {7})};
  const auto plan = PlanRestore(store.parts, targets);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->size(), 7u);
}

TEST(RestorePlannerWorldTest, PlansForALargeWorldInAPassOverItsParts) {
  // 1,000 slabs with 200 tensors each, of which a rank wants 200 shards: 200,000 parts.
  Store store;
  std::vector<TensorSpec> targets;
  constexpr uint64_t kSlabs = 1000;
  for (int t = 0; t < 200; ++t) {
    const std::string name = "layers." + std::to_string(t) + ".weight";
    for (uint64_t slab = 0; slab < kSlabs; ++slab) {
      store.AddWhole(Spec(name, {kSlabs, 16}, {slab, 0}, {1, 16}), static_cast<uint32_t>(slab),
                     static_cast<uint64_t>(t) * 64);
    }
    targets.push_back(Spec(name, {kSlabs, 16}, {100, 0}, {300, 16}));
  }
  const auto plan = PlanRestore(store.parts, targets);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->size(), 200u * 300);
}

}  // namespace
}  // namespace unreft::recovery
