// What every RecordStore does: one suite, instantiated on RocksDB, on the fake and on memory. And a
// second one, of a store on a disk.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/record_store.h"
#include "tests/conformance/world.h"

namespace unreft {

class RecordStoreWorld {
 public:
  virtual ~RecordStoreWorld() = default;
  virtual World& world() = 0;
  // A store on the one disk of this world, if it has one; the one before is destroyed, or this
  // fails.
  virtual absl::StatusOr<std::unique_ptr<RecordStore>> Open() = 0;
};

inline bool operator==(const Record& a, const Record& b) {
  return a.key == b.key && a.value == b.value;
}
inline void PrintTo(const Record& record, std::ostream* out) {
  *out << record.key << "=" << record.value;
}

class RecordStoreConformance : public testing::TestWithParam<WorldMaker<RecordStoreWorld>> {
 protected:
  using Records = std::vector<Record>;

  World& world() { return world_->world(); }

  std::unique_ptr<RecordStore> Open() {
    auto store = world_->Open();
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }

  absl::Status Write(RecordStore& store, std::vector<RecordChange> batch,
                     Durability durability = Durability::kSynced) {
    std::optional<absl::Status> result;
    world().InTurn([&] {
      store.Write(std::move(batch), durability, [&](absl::Status status) { result = status; });
      EXPECT_FALSE(result.has_value()) << "called inline";
    });
    EXPECT_TRUE(world().RunUntil([&] { return result.has_value(); }));
    return *result;
  }

  Records Scan(RecordStore& store, const std::string& prefix) {
    std::optional<absl::StatusOr<Records>> result;
    world().InTurn([&] {
      store.Scan(prefix, [&](absl::StatusOr<Records> records) { result = std::move(records); });
      EXPECT_FALSE(result.has_value()) << "called inline";
    });
    EXPECT_TRUE(world().RunUntil([&] { return result.has_value(); }));
    EXPECT_TRUE(result->ok()) << result->status();
    return **std::move(result);
  }

  std::unique_ptr<RecordStoreWorld> world_ = GetParam().make();
};

TEST_P(RecordStoreConformance, BeginsEmpty) {
  auto store = Open();
  EXPECT_TRUE(Scan(*store, "").empty());
}

TEST_P(RecordStoreConformance, ReadsBackWhatWasWritten) {
  auto store = Open();
  const std::string binary("\0\xff\n", 3);
  EXPECT_TRUE(Write(*store, {{"b", "2"}, {"a", binary}, {"empty", ""}}).ok());
  EXPECT_EQ(Scan(*store, ""), (Records{{"a", binary}, {"b", "2"}, {"empty", ""}}));
  EXPECT_TRUE(Write(*store, {{"b", "3"}, {"a", std::nullopt}}, Durability::kBuffered).ok());
  EXPECT_EQ(Scan(*store, ""), (Records{{"b", "3"}, {"empty", ""}}));
}

TEST_P(RecordStoreConformance, RemovingWhatIsNotThereIsFine) {
  auto store = Open();
  EXPECT_TRUE(Write(*store, {{"nothing", std::nullopt}}).ok());
  EXPECT_TRUE(Write(*store, {}).ok());
  EXPECT_TRUE(Scan(*store, "").empty());
}

TEST_P(RecordStoreConformance, TheLastChangeOfAKeyInABatchCounts) {
  auto store = Open();
  EXPECT_TRUE(Write(*store, {{"k", "1"}, {"k", std::nullopt}, {"k", "2"}}).ok());
  EXPECT_EQ(Scan(*store, "k"), (Records{{"k", "2"}}));
}

TEST_P(RecordStoreConformance, ScansByPrefixInOrderOfBytes) {
  auto store = Open();
  EXPECT_TRUE(Write(*store, {{"slot/10", ""}, {"slot/2", ""}, {"slot", ""}, {"slou", ""}}).ok());
  EXPECT_TRUE(Write(*store, {{"\xff\xff", "x"}, {"\xff", "y"}, {"\xfe", "z"}}).ok());
  EXPECT_EQ(Scan(*store, "slot/"), (Records{{"slot/10", ""}, {"slot/2", ""}}));
  EXPECT_EQ(Scan(*store, "slot").size(), 3u);
  EXPECT_EQ(Scan(*store, "\xff"), (Records{{"\xff", "y"}, {"\xff\xff", "x"}}));
  EXPECT_TRUE(Scan(*store, "t").empty());
}

TEST_P(RecordStoreConformance, CallsTakeEffectAndAreReportedInOrder) {
  constexpr int kBatches = 100;
  auto store = Open();
  std::vector<int> order;
  Records seen;
  world().InTurn([&] {
    for (int i = 0; i < kBatches; ++i) {
      store->Write({{"k", std::to_string(i)}},
                   i % 3 == 0 ? Durability::kSynced : Durability::kBuffered,
                   [&, i](absl::Status status) {
                     EXPECT_TRUE(status.ok()) << status;
                     EXPECT_TRUE(world().executor().InTurn());
                     order.push_back(i);
                   });
      if (i == kBatches / 2) {
        store->Scan("k", [&](absl::StatusOr<Records> records) { seen = *std::move(records); });
      }
    }
  });
  ASSERT_TRUE(world().RunUntil([&] { return order.size() == kBatches; }));
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(seen, (Records{{"k", std::to_string(kBatches / 2)}}))
      << "a scan sees the batches before it and none after";
}

TEST_P(RecordStoreConformance, NoCallbackAfterTheDestructorAndNoBatchInPart) {
  auto store = Open();
  bool called = false;
  world().InTurn([&] {
    for (int i = 1; i <= 10; ++i) {
      const std::string value = std::to_string(i);
      store->Write({{"a", value}, {"b", value}}, Durability::kBuffered,
                   [&](absl::Status) { called = true; });
    }
    store.reset();
  });
  world().Settle();
  EXPECT_FALSE(called);
  store = Open();
  const Records left = Scan(*store, "");
  if (left.empty()) return;
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0].value, left[1].value);
}

class DiskRecordStoreConformance : public RecordStoreConformance {};

TEST_P(DiskRecordStoreConformance, RecordsOutliveTheStore) {
  auto store = Open();
  EXPECT_TRUE(Write(*store, {{"buffered", "1"}}, Durability::kBuffered).ok());
  EXPECT_TRUE(Write(*store, {{"synced", "2"}}, Durability::kSynced).ok());
  EXPECT_TRUE(Write(*store, {{"buffered", "3"}}, Durability::kBuffered).ok());
  store.reset();
  store = Open();
  EXPECT_EQ(Scan(*store, ""), (Records{{"buffered", "3"}, {"synced", "2"}}));
}

TEST_P(DiskRecordStoreConformance, OnlyOneStoreHoldsTheDisk) {
  auto store = Open();
  EXPECT_EQ(world_->Open().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Write(*store, {{"k", "v"}}).ok()) << "the first one is not disturbed";
  store.reset();
  EXPECT_TRUE(world_->Open().ok());
}

}  // namespace unreft
