// What every SegmentStore does: one suite, instantiated on the real store and on the fake.
//
// A back end gives a harness: a store, the prefix its names must have, and its clean-up.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include "base/segment_store.h"

namespace unreft {

class SegmentStoreHarness {
 public:
  virtual ~SegmentStoreHarness() = default;  // removes every segment under prefix()
  virtual SegmentStore& store() = 0;
  virtual std::string prefix() = 0;
};

using SegmentStoreFactory = std::function<std::unique_ptr<SegmentStoreHarness>()>;

class SegmentStoreConformance : public testing::TestWithParam<SegmentStoreFactory> {
 protected:
  static constexpr uint64_t kPage = 4096;

  SegmentStore& store() { return harness_->store(); }
  std::string Name(const std::string& what) { return harness_->prefix() + what; }

  // A segment whose bytes may be touched.
  std::unique_ptr<Segment> Make(const std::string& what, uint64_t bytes) {
    auto segment = store().Create(Name(what), bytes);
    EXPECT_TRUE(segment.ok()) << segment.status();
    EXPECT_TRUE((*segment)->Reserve(0, bytes).ok());
    return *std::move(segment);
  }

  std::unique_ptr<SegmentStoreHarness> harness_ = GetParam()();
};

TEST_P(SegmentStoreConformance, CreatesZeroBytesOfTheSizeAsked) {
  auto segment = Make("zero", 3 * kPage + 100);
  EXPECT_EQ(segment->name(), Name("zero"));
  const auto bytes = segment->bytes();
  ASSERT_EQ(bytes.size(), 3 * kPage + 100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % kPage, 0u);
  EXPECT_TRUE(
      std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{}; }));
}

TEST_P(SegmentStoreConformance, RefusesBadNamesAndZeroBytes) {
  using absl::StatusCode;
  for (const std::string& name :
       {std::string("no-slash"), std::string("/"), std::string(), Name("a/b"), Name("a b"),
        Name("\n"), Name(std::string("a\0b", 3)), Name(std::string(200, 'x'))}) {
    EXPECT_EQ(store().Create(name, kPage).status().code(), StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(store().Open(name, Access::kReadWrite).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(store().Remove(name).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(store().Create(Name("z"), 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(store().List(harness_->prefix())->empty());
}

TEST_P(SegmentStoreConformance, ANameIsTakenOnce) {
  auto segment = Make("one", kPage);
  segment->bytes()[7] = std::byte{42};
  const auto second = store().Create(Name("one"), 2 * kPage);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), testing::HasSubstr(Name("one")));
  EXPECT_EQ(segment->bytes()[7], std::byte{42});
}

TEST_P(SegmentStoreConformance, MappingsShareTheBytes) {
  auto writer = Make("shared", 2 * kPage);
  auto reader = store().Open(Name("shared"), Access::kReadOnly);
  ASSERT_TRUE(reader.ok()) << reader.status();
  auto other = store().Open(Name("shared"), Access::kReadWrite);
  ASSERT_TRUE(other.ok()) << other.status();
  ASSERT_EQ((*reader)->bytes().size(), 2 * kPage);
  writer->bytes()[5000] = std::byte{1};
  EXPECT_EQ((*reader)->bytes()[5000], std::byte{1});
  (*other)->bytes()[5000] = std::byte{2};
  EXPECT_EQ((*reader)->bytes()[5000], std::byte{2});
}

TEST_P(SegmentStoreConformance, SharedWordsWorkAcrossMappings) {
  auto writer = Make("words", kPage);
  auto reader = store().Open(Name("words"), Access::kReadWrite);
  ASSERT_TRUE(reader.ok());
  auto* word = new (writer->bytes().data()) SharedWord(0);
  auto* same = reinterpret_cast<SharedWord*>((*reader)->bytes().data());
  word->store(7, std::memory_order_release);
  EXPECT_EQ(same->load(std::memory_order_acquire), 7u);
}

TEST_P(SegmentStoreConformance, BytesOutliveTheMapping) {
  Make("stays", kPage)->bytes()[9] = std::byte{9};
  auto again = store().Open(Name("stays"), Access::kReadOnly);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ((*again)->bytes()[9], std::byte{9});
}

TEST_P(SegmentStoreConformance, OneMappingHasTheLockUntilItGoes) {
  auto holder = Make("locked", kPage);
  ASSERT_TRUE(holder->Lock().ok());
  EXPECT_TRUE(holder->Lock().ok()) << "it has it already";
  auto other = *store().Open(Name("locked"), Access::kReadWrite);
  const absl::Status refused = other->Lock();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr(Name("locked")));
  *store().Open(Name("locked"), Access::kReadWrite);  // the end of a mapping without it
  EXPECT_FALSE(other->Lock().ok());
  holder.reset();
  EXPECT_TRUE(other->Lock().ok());
}

TEST_P(SegmentStoreConformance, ALockOnWhatWasRemovedIsNone) {
  auto late = Make("removed", kPage);
  ASSERT_TRUE(store().Remove(Name("removed")).ok());
  EXPECT_EQ(late->Lock().code(), absl::StatusCode::kNotFound);
  auto next = Make("removed", kPage);
  EXPECT_EQ(late->Lock().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(next->Lock().ok());
}

TEST_P(SegmentStoreConformance, MapsAPart) {
  auto whole = Make("part", 4 * kPage);
  whole->bytes()[kPage] = std::byte{1};
  whole->bytes()[3 * kPage - 1] = std::byte{2};
  auto part = store().Open(Name("part"), Access::kReadWrite, kPage, 2 * kPage);
  ASSERT_TRUE(part.ok()) << part.status();
  ASSERT_EQ((*part)->bytes().size(), 2 * kPage);
  EXPECT_EQ((*part)->bytes().front(), std::byte{1});
  EXPECT_EQ((*part)->bytes().back(), std::byte{2});
  auto rest = store().Open(Name("part"), Access::kReadOnly, 3 * kPage);
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_EQ((*rest)->bytes().size(), kPage);
}

TEST_P(SegmentStoreConformance, RefusesPartsThatAreNotThere) {
  auto segment = Make("short", 2 * kPage);
  const auto code = [&](uint64_t offset, uint64_t length) {
    return store().Open(Name("short"), Access::kReadOnly, offset, length).status().code();
  };
  EXPECT_EQ(code(0, 2 * kPage + 1), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code(kPage, kPage + 1), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code(2 * kPage, 0), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code(100, 10), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code(kPage, UINT64_MAX), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code(0, 2 * kPage), absl::StatusCode::kOk);
}

TEST_P(SegmentStoreConformance, OpeningAnAbsentSegmentIsNotFound) {
  const auto status = store().Open(Name("absent"), Access::kReadWrite).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(Name("absent")));
}

TEST_P(SegmentStoreConformance, ReserveIsRelativeToTheMappingAndIdempotent) {
  auto whole = store().Create(Name("reserve"), 4 * kPage);
  ASSERT_TRUE(whole.ok());
  auto part = store().Open(Name("reserve"), Access::kReadWrite, 2 * kPage);
  ASSERT_TRUE(part.ok());
  EXPECT_TRUE((*part)->Reserve(kPage, kPage).ok());
  EXPECT_TRUE((*part)->Reserve(kPage, kPage).ok());
  (*part)->bytes()[kPage] = std::byte{3};
  EXPECT_TRUE((*whole)->Reserve(3 * kPage + 5, 1).ok());
  EXPECT_EQ((*whole)->bytes()[3 * kPage], std::byte{3}) << "reserving again keeps the bytes";
  EXPECT_TRUE((*whole)->Reserve(4 * kPage, 0).ok());
  EXPECT_EQ((*part)->Reserve(kPage, kPage + 1).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ((*part)->Reserve(1, SIZE_MAX).code(), absl::StatusCode::kOutOfRange);
}

TEST_P(SegmentStoreConformance, AReadOnlyMappingCannotReserve) {
  auto segment = Make("ro", kPage);
  auto reader = store().Open(Name("ro"), Access::kReadOnly);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ((*reader)->Reserve(0, kPage).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(SegmentStoreConformance, PopulatingChangesNoByteAndRefusesNothing) {
  auto writer = Make("populate", 3 * kPage);
  std::fill(writer->bytes().begin(), writer->bytes().end(), std::byte{7});
  auto reader = *store().Open(Name("populate"), Access::kReadOnly, kPage);
  reader->Populate(0, kPage);
  reader->Populate(100, 2 * kPage);
  reader->Populate(kPage, SIZE_MAX);
  reader->Populate(SIZE_MAX, 1);
  EXPECT_TRUE(std::all_of(reader->bytes().begin(), reader->bytes().end(),
                          [](std::byte b) { return b == std::byte{7}; }));
}

TEST_P(SegmentStoreConformance, ReservingMoreThanThereIsFailsWithNumbers) {
  const uint64_t free = store().Capacity()->segments_free;
  if (free > uint64_t{1} << 50) GTEST_SKIP() << "the store has no limit";
  const uint64_t too_much = free + (uint64_t{1} << 30);
  auto segment = store().Create(Name("huge"), too_much);
  ASSERT_TRUE(segment.ok()) << "creating reserves nothing: " << segment.status();
  const absl::Status status = (*segment)->Reserve(0, too_much);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(Name("huge")));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(std::to_string(too_much)));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("bytes free"));
  // Nothing of it was taken, and the segment works within what there is.
  EXPECT_GE(store().Capacity()->segments_free + (uint64_t{64} << 20), free);
  EXPECT_TRUE((*segment)->Reserve(0, kPage).ok());
  (*segment)->bytes()[0] = std::byte{1};
}

TEST_P(SegmentStoreConformance, ListsByPrefixInOrder) {
  Make("b", kPage);
  Make("a", 3 * kPage);
  Make("ab", 2 * kPage);
  const auto all = store().List(harness_->prefix());
  ASSERT_TRUE(all.ok());
  ASSERT_EQ(all->size(), 3u);
  EXPECT_EQ((*all)[0].name, Name("a"));
  EXPECT_EQ((*all)[0].bytes, 3 * kPage);
  EXPECT_EQ((*all)[1].name, Name("ab"));
  EXPECT_EQ((*all)[2].name, Name("b"));
  EXPECT_EQ(store().List(Name("a"))->size(), 2u);
  EXPECT_TRUE(store().List(Name("nothing"))->empty());
}

TEST_P(SegmentStoreConformance, RemovedBytesStayWithTheirMappings) {
  auto old = Make("again", kPage);
  old->bytes()[0] = std::byte{1};
  EXPECT_TRUE(store().Remove(Name("again")).ok());
  EXPECT_EQ(store().Remove(Name("again")).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store().Open(Name("again"), Access::kReadOnly).status().code(),
            absl::StatusCode::kNotFound);
  auto fresh = Make("again", kPage);
  EXPECT_EQ(fresh->bytes()[0], std::byte{0});
  EXPECT_EQ(old->bytes()[0], std::byte{1});
}

TEST_P(SegmentStoreConformance, CapacityIsKnown) {
  const auto capacity = store().Capacity();
  ASSERT_TRUE(capacity.ok());
  EXPECT_GT(capacity->segments_free, 0u);
  EXPECT_GT(capacity->ram_available, 0u);
  EXPECT_GT(capacity->memlock_limit, 0u);
}

using SegmentStoreConformanceDeathTest = SegmentStoreConformance;

TEST_P(SegmentStoreConformanceDeathTest, WritingAReadOnlyMappingIsACrash) {
  auto segment = Make("guard", kPage);
  auto reader = store().Open(Name("guard"), Access::kReadOnly);
  ASSERT_TRUE(reader.ok());
  auto* byte = reinterpret_cast<volatile unsigned char*>((*reader)->bytes().data());
  EXPECT_DEATH(*byte = 1, "");
}

}  // namespace unreft
