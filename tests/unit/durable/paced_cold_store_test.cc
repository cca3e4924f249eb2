// The pace of a PacedColdStore, in a time that only passes where a test lets it.

#include "durable/paced_cold_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/fakes/memory_cold_store.h"

namespace unreft::durable {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Written {
  Duration at;
  uint64_t bytes;
};

// Tells what reaches the store, and when.
class WatchedStore : public MemoryColdStore {
 public:
  explicit WatchedStore(std::function<void(uint64_t)> on_write) : on_write_(std::move(on_write)) {}

  absl::StatusOr<std::unique_ptr<ColdFile>> Create(std::string_view name) override {
    auto file = MemoryColdStore::Create(name);
    if (!file.ok()) return file.status();
    return std::make_unique<WatchedFile>(*std::move(file), on_write_);
  }
  absl::Status Put(std::string_view name, std::string_view bytes) override {
    on_write_(bytes.size());
    return MemoryColdStore::Put(name, bytes);
  }

 private:
  class WatchedFile : public ColdFile {
   public:
    WatchedFile(std::unique_ptr<ColdFile> file, std::function<void(uint64_t)> on_write)
        : file_(std::move(file)), on_write_(std::move(on_write)) {}
    absl::Status Append(std::span<const std::byte> bytes) override {
      on_write_(bytes.size());
      return file_->Append(bytes);
    }
    uint64_t bytes() const override { return file_->bytes(); }
    absl::Status Finish() override { return file_->Finish(); }

   private:
    const std::unique_ptr<ColdFile> file_;
    const std::function<void(uint64_t)> on_write_;
  };

  const std::function<void(uint64_t)> on_write_;
};

class PacedColdStoreTest : public testing::Test {
 protected:
  static constexpr uint64_t kPiece = 100;

  PacedColdStore Make(uint64_t bytes_per_s) {
    return PacedColdStore(store_, {.bytes_per_s = bytes_per_s,
                                   .piece_bytes = kPiece,
                                   .now = [this] { return Now(); },
                                   .pause = [this](Duration duration) { Pause(duration); }});
  }
  Time Now() {
    std::lock_guard lock(mutex_);
    return now_;
  }
  void Pause(Duration duration) {
    std::lock_guard lock(mutex_);
    EXPECT_GT(duration, Duration(0));
    now_ += duration + oversleeps_;
    ++pauses_;
  }
  void Pass(Duration duration) {
    std::lock_guard lock(mutex_);
    now_ += duration;
  }
  // The most that was written in any second.
  uint64_t MostInASecond() const {
    uint64_t most = 0;
    for (const Written& first : written_) {
      uint64_t bytes = 0;
      for (const Written& one : written_) {
        if (one.at >= first.at && one.at < first.at + seconds(1)) bytes += one.bytes;
      }
      most = std::max(most, bytes);
    }
    return most;
  }
  uint64_t Total() const {
    uint64_t bytes = 0;
    for (const Written& one : written_) bytes += one.bytes;
    return bytes;
  }
  static std::string Bytes(size_t count) { return std::string(count, 'x'); }
  static std::span<const std::byte> AsBytes(const std::string& text) {
    return std::as_bytes(std::span(text));
  }

  std::mutex mutex_;
  Time now_{seconds(1000)};
  Duration oversleeps_{0};
  int pauses_ = 0;
  std::vector<Written> written_;
  WatchedStore store_{[this](uint64_t bytes) {
    std::lock_guard lock(mutex_);
    written_.push_back({now_.time_since_epoch(), bytes});
  }};
};

TEST_F(PacedColdStoreTest, NoLimitNeverPauses) {
  PacedColdStore paced = Make(0);
  auto file = paced.Create("a");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->Append(AsBytes(Bytes(5000))).ok());
  ASSERT_TRUE((*file)->Finish().ok());
  ASSERT_TRUE(paced.Put("b", Bytes(5000)).ok());
  EXPECT_EQ(pauses_, 0);
  EXPECT_EQ(written_.size(), 2U) << "nor is an append cut";
}

TEST_F(PacedColdStoreTest, ALargeAppendGoesInPiecesAtTheLimit) {
  PacedColdStore paced = Make(1000);
  auto file = paced.Create("a");
  ASSERT_TRUE((*file)->Append(AsBytes(Bytes(5050))).ok());
  EXPECT_EQ((*file)->bytes(), 5050U);
  EXPECT_LE(MostInASecond(), 1000 + kPiece);
  EXPECT_EQ(written_.size(), 51U);
  EXPECT_EQ(Now() - Time(seconds(1000)), seconds(5)) << "no slower than the limit";
  ASSERT_TRUE((*file)->Finish().ok());
  EXPECT_EQ(*store_.Get("a", 10'000), Bytes(5050));
}

TEST_F(PacedColdStoreTest, TimeNotUsedIsNotSavedUp) {
  PacedColdStore paced = Make(1000);
  auto file = paced.Create("a");
  ASSERT_TRUE((*file)->Append(AsBytes(Bytes(10))).ok());
  Pass(seconds(60));
  ASSERT_TRUE((*file)->Append(AsBytes(Bytes(3000))).ok());
  EXPECT_LE(MostInASecond(), 1000 + kPiece);
}

TEST_F(PacedColdStoreTest, APauseThatLastsTooLongIsNotMadeUpFor) {
  PacedColdStore paced = Make(1000);
  oversleeps_ = milliseconds(350);
  auto file = paced.Create("a");
  ASSERT_TRUE((*file)->Append(AsBytes(Bytes(3000))).ok());
  EXPECT_LE(MostInASecond(), 1000 + kPiece);
}

TEST_F(PacedColdStoreTest, APutCountsToo) {
  PacedColdStore paced = Make(1000);
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(paced.Put("p" + std::to_string(i), Bytes(90)).ok());
  EXPECT_LE(MostInASecond(), 1000U + 90U);
  EXPECT_EQ(Total(), 4500U);
}

TEST_F(PacedColdStoreTest, AllFilesShareTheLimit) {
  PacedColdStore paced = Make(1000);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      auto file = paced.Create("t" + std::to_string(i));
      ASSERT_TRUE((*file)->Append(AsBytes(Bytes(1000))).ok());
      ASSERT_TRUE((*file)->Finish().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Total(), 4000U);
  // The last piece begins when those before it have had their time.
  EXPECT_EQ(Now() - Time(seconds(1000)), milliseconds(3900));
}

TEST_F(PacedColdStoreTest, APauseCutShortLetsTheWriteGoOn) {
  int pauses = 0;
  PacedColdStore paced(store_, {.bytes_per_s = 1,
                                .piece_bytes = kPiece,
                                .now = [this] { return Now(); },
                                .pause = [&](Duration) { ++pauses; }});
  auto file = paced.Create("a");
  ASSERT_TRUE((*file)->Append(AsBytes(Bytes(300))).ok());
  EXPECT_EQ(pauses, 2);
}

TEST_F(PacedColdStoreTest, FailuresAndTheOtherCallsPassThrough) {
  PacedColdStore paced = Make(1000);
  auto file = paced.Create("a");
  store_.FailWrite(2, absl::UnavailableError("gone"));
  EXPECT_EQ((*file)->Append(AsBytes(Bytes(1000))), absl::UnavailableError("gone"));
  EXPECT_EQ(written_.size(), 2U) << "nothing is written after a failure";
  EXPECT_EQ((*file)->Append({}), absl::UnavailableError("gone"));
  EXPECT_EQ((*file)->Finish(), absl::UnavailableError("gone"));

  ASSERT_TRUE(paced.Put("d/b", "bytes").ok());
  EXPECT_EQ(paced.Create("d/b").status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(*paced.Get("d/b", 5), "bytes");
  std::string two(2, ' ');
  ASSERT_TRUE(paced.Read("d/b", 1, std::as_writable_bytes(std::span(two))).ok());
  EXPECT_EQ(two, "yt");
  EXPECT_EQ(*paced.List("d"), std::vector<ColdEntry>({{"d/b", 5}}));
  EXPECT_EQ(*paced.RemoveLeftovers("d", {}), 0U);
  EXPECT_TRUE(paced.Remove("d/b").ok());
  EXPECT_EQ(paced.Describe(), "memory");
}

}  // namespace
}  // namespace unreft::durable
