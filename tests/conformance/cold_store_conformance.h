// What every ColdStore does: one suite, instantiated on directories and on the fake.
//
// A back end gives a harness: a store with nothing in it, and its clean-up.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "durable/cold_store.h"
#include "tests/conformance/cold_store_testing.h"

namespace unreft {

class ColdStoreHarness {
 public:
  virtual ~ColdStoreHarness() = default;
  virtual durable::ColdStore& store() = 0;
};

using ColdStoreFactory = std::function<std::unique_ptr<ColdStoreHarness>()>;

class ColdStoreConformance : public testing::TestWithParam<ColdStoreFactory> {
 protected:
  using Names = std::vector<std::string>;
  static constexpr uint64_t kMost = uint64_t{64} << 20;

  durable::ColdStore& store() { return harness_->store(); }
  std::string Get(std::string_view name) {
    auto bytes = store().Get(name, kMost);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.value_or("");
  }

  std::unique_ptr<ColdStoreHarness> harness_ = GetParam()();
};

TEST_P(ColdStoreConformance, AnySizeComesBackByteForByte) {
  constexpr size_t kBuffer = size_t{8} << 20;
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, kBuffer - 1, kBuffer, kBuffer + 1}) {
    const std::string name = "sizes/" + std::to_string(size);
    const std::string bytes = RandomBytes(size);
    ASSERT_TRUE(WriteColdFile(store(), name, bytes).ok()) << size;
    EXPECT_TRUE(Get(name) == bytes) << size;
    EXPECT_EQ(store().List("sizes")->size(), 1U);
    EXPECT_EQ(store().List("sizes")->front(), (durable::ColdEntry{name, size}));
    EXPECT_TRUE(store().Remove(name).ok());
  }
}

TEST_P(ColdStoreConformance, AppendsFollowOneAnother) {
  const std::string bytes = RandomBytes((size_t{17} << 20) + 333);
  auto file = store().Create("appended");
  ASSERT_TRUE(file.ok()) << file.status();
  Random random(7);
  size_t done = 0;
  while (done < bytes.size()) {
    // Small ones and large ones, an empty one now and then.
    const size_t most = random.OneIn(20) ? 9 << 20 : 100'000;
    const size_t count = std::min<size_t>(random.Below(most), bytes.size() - done);
    ASSERT_TRUE((*file)->Append(AsBytes(bytes).subspan(done, count)).ok());
    done += count;
    ASSERT_EQ((*file)->bytes(), done);
  }
  ASSERT_TRUE((*file)->Finish().ok());
  EXPECT_EQ((*file)->bytes(), bytes.size());
  EXPECT_TRUE(Get("appended") == bytes);
}

TEST_P(ColdStoreConformance, AFileIsThereWhenItIsFinishedAndNotBefore) {
  auto file = store().Create("a/b/c");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Append(AsBytes(RandomBytes(size_t{9} << 20))).ok());
  EXPECT_EQ(store().Get("a/b/c", kMost).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store().Read("a/b/c", 0, {}).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store().Remove("a/b/c").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(NamesIn(store()), Names());
  ASSERT_TRUE((*file)->Finish().ok());
  EXPECT_EQ(NamesIn(store()), Names({"a/b/c"}));
  EXPECT_EQ((*file)->Append(AsBytes("more")).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*file)->Finish().code(), absl::StatusCode::kFailedPrecondition);
  file->reset();
  EXPECT_EQ(NamesIn(store()), Names({"a/b/c"}));
}

TEST_P(ColdStoreConformance, WhatIsNotFinishedIsThrownAway) {
  {
    auto file = store().Create("x/y");
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->Append(AsBytes("lost")).ok());
  }
  EXPECT_EQ(NamesIn(store()), Names());
  EXPECT_TRUE(store().Put("x", "a file where the directory was").ok());
}

TEST_P(ColdStoreConformance, ANameIsTakenOnce) {
  ASSERT_TRUE(store().Put("one", "first").ok());
  const absl::Status second = store().Put("one", "second");
  EXPECT_EQ(second.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.message()), testing::HasSubstr("one"));
  EXPECT_EQ(store().Create("one").status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Get("one"), "first");
}

TEST_P(ColdStoreConformance, OfTwoWritersTheFirstToFinishHasTheName) {
  auto slow = store().Create("d/raced");
  auto fast = store().Create("d/raced");
  ASSERT_TRUE(slow.ok() && fast.ok());
  ASSERT_TRUE((*slow)->Append(AsBytes("slow")).ok());
  ASSERT_TRUE((*fast)->Append(AsBytes("fast")).ok());
  ASSERT_TRUE((*fast)->Finish().ok());
  EXPECT_EQ((*slow)->Finish().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ((*slow)->Append(AsBytes("?")).code(), absl::StatusCode::kAlreadyExists);
  slow->reset();
  EXPECT_EQ(Get("d/raced"), "fast");
  EXPECT_EQ(NamesIn(store()), Names({"d/raced"}));
}

TEST_P(ColdStoreConformance, OfManyWhoPutOneNameOneSucceeds) {
  constexpr int kWriters = 4;
  for (int round = 0; round < 10; ++round) {
    const std::string name = "marks/" + std::to_string(round);
    std::atomic<int> winners = 0;
    std::atomic<int> winner = -1;
    std::vector<std::thread> threads;
    for (int i = 0; i < kWriters; ++i) {
      threads.emplace_back([&, i] {
        const absl::Status status = store().Put(name, RandomBytes(10'000, i));
        if (status.ok()) {
          ++winners;
          winner = i;
        } else {
          EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(winners, 1);
    EXPECT_TRUE(Get(name) == RandomBytes(10'000, winner));
  }
}

// One makes a directory while another's last file in it goes, and the directory with it.
TEST_P(ColdStoreConformance, WritersAndRemoversOfOneDirectoryDoNotDisturbOneAnother) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      const std::string name = "shared/inner/" + std::to_string(i);
      for (int round = 0; round < 30; ++round) {
        const absl::Status put = WriteColdFile(store(), name, "x");
        ASSERT_TRUE(put.ok()) << put;
        const absl::Status removed = store().Remove(name);
        ASSERT_TRUE(removed.ok()) << removed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(NamesIn(store()), Names());
  EXPECT_TRUE(store().Put("shared", "a file where the directory was").ok());
}

TEST_P(ColdStoreConformance, ReadsAnyRange) {
  const std::string bytes = RandomBytes(100'000);
  ASSERT_TRUE(WriteColdFile(store(), "ranges", bytes).ok());
  for (const size_t offset : {0, 1, 4096, 99'000}) {
    std::string into(1000, '\0');
    ASSERT_TRUE(store().Read("ranges", offset, std::as_writable_bytes(std::span(into))).ok());
    EXPECT_EQ(into, bytes.substr(offset, 1000));
  }
  EXPECT_TRUE(store().Read("ranges", 100'000, {}).ok());
  std::string into(1000, '\0');
  for (const uint64_t offset : {uint64_t{99'001}, uint64_t{100'001}, UINT64_MAX}) {
    const absl::Status status =
        store().Read("ranges", offset, std::as_writable_bytes(std::span(into)));
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("100000"));
  }
}

TEST_P(ColdStoreConformance, GetHasALimit) {
  ASSERT_TRUE(store().Put("limited", "12345").ok());
  EXPECT_EQ(*store().Get("limited", 5), "12345");
  const absl::Status status = store().Get("limited", 4).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("5 bytes"));
}

TEST_P(ColdStoreConformance, ListsWhatIsBelowADirectorySorted) {
  for (const char* name : {"b", "a/2", "a/10", "a.b/x", "a-b", "a/c/d", "ab", ".hidden"}) {
    ASSERT_TRUE(store().Put(name, name).ok()) << name;
  }
  EXPECT_EQ(NamesIn(store(), "a"), Names({"a/10", "a/2", "a/c/d"}));
  EXPECT_EQ(NamesIn(store(), "a/c"), Names({"a/c/d"}));
  EXPECT_EQ(NamesIn(store(), "b"), Names()) << "a file has nothing below it";
  EXPECT_EQ(NamesIn(store(), "absent/too"), Names());
  EXPECT_NE(*store().Anything("a"), "");
  EXPECT_NE(*store().Anything(""), "");
  EXPECT_EQ(*store().Anything("absent/too"), "");
  EXPECT_EQ(NamesIn(store()),
            Names({".hidden", "a-b", "a.b/x", "a/10", "a/2", "a/c/d", "ab", "b"}));
}

TEST_P(ColdStoreConformance, RemovesAFileAndTheDirectoriesItLeavesEmpty) {
  ASSERT_TRUE(store().Put("a/b/c/file", "1").ok());
  ASSERT_TRUE(store().Put("a/other", "2").ok());
  ASSERT_TRUE(store().Remove("a/b/c/file").ok());
  EXPECT_EQ(store().Remove("a/b/c/file").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(NamesIn(store()), Names({"a/other"}));
  EXPECT_TRUE(store().Put("a/b", "a file where the directory was").ok());
  EXPECT_EQ(store().Remove("a").code(), absl::StatusCode::kNotFound) << "it is no file";
}

TEST_P(ColdStoreConformance, NoNameIsAFilesAndADirectorys) {
  ASSERT_TRUE(store().Put("file", "1").ok());
  ASSERT_TRUE(store().Put("directory/file", "2").ok());
  EXPECT_EQ(store().Put("file/below", "3").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store().Create("file/below/it").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store().Put("directory", "4").code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(store().Get("directory", kMost).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store().Get("file/below", kMost).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store().Remove("file/below").code(), absl::StatusCode::kNotFound);
}

TEST_P(ColdStoreConformance, RefusesBadNames) {
  const std::string longest = std::string(200, 'p') + "/" + std::string(200, 'q');
  EXPECT_TRUE(store().Put(longest, "").ok());
  for (const std::string& name :
       {std::string(), std::string("/"), std::string("/a"), std::string("a/"), std::string("a//b"),
        std::string("."), std::string(".."), std::string("a/../b"), std::string("a b"),
        std::string("ü"), std::string("a\0b", 3), std::string(201, 'x'),
        std::string(".unreft-part-1"), std::string("a/.unreft-part-/b")}) {
    using absl::StatusCode;
    EXPECT_EQ(store().Create(name).status().code(), StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(store().Put(name, "").code(), StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(store().Get(name, 1).status().code(), StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(store().Read(name, 0, {}).code(), StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(store().Remove(name).code(), StatusCode::kInvalidArgument) << name;
    if (name.empty()) continue;
    EXPECT_EQ(store().List(name).status().code(), StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(store().RemoveLeftovers(name, {}).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(NamesIn(store()), Names({longest}));
}

TEST_P(ColdStoreConformance, LiveFilesAreNoLeftovers) {
  auto file = store().Create("live/file");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Append(AsBytes("x")).ok());
  ASSERT_TRUE(store().Put("live/whole", "y").ok());
  EXPECT_EQ(*store().RemoveLeftovers("", std::chrono::system_clock::time_point()), 0U);
  ASSERT_TRUE((*file)->Finish().ok());
  EXPECT_EQ(NamesIn(store()), Names({"live/file", "live/whole"}));
}

}  // namespace unreft
