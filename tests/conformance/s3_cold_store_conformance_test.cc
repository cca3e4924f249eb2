// The ColdStore suite on a server of S3, and what only this back end has. tests/s3 starts the
// server and runs this; it is no test of ctest.
//
//   s3_cold_store_conformance_test PLACE [--gtest_...]
//
// PLACE is s3://BUCKET/PREFIX; the rest comes from the environment, as for unreftd.

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "durable/s3_cold_store.h"
#include "tests/conformance/cold_store_conformance.h"

namespace unreft {
namespace {

using durable::ColdEntry;
using durable::ColdStore;
using durable::S3ColdOptions;
using durable::S3ColdStore;
using durable::S3Place;
using testing::HasSubstr;
using Names = std::vector<std::string>;

constexpr uint64_t kMost = uint64_t{64} << 20;
constexpr uint64_t kLeastPart = uint64_t{5} << 20;  // that S3 takes

S3Place place;  // set by main

// None that another test of this run, or of one before, has used.
S3Place NewPlace() {
  static Random random = Random::FromEntropy();
  S3Place fresh = place;
  fresh.prefix += fmt::format("{}{:016x}", place.prefix.empty() ? "" : "/", random.Next());
  return fresh;
}

S3ColdOptions Options() {
  S3ColdOptions options;
  options.pace.pause = [](Duration duration) {
    std::this_thread::sleep_for(duration);
    return true;
  };
  options.now = std::chrono::system_clock::now;
  options.part_bytes = kLeastPart;
  return options;
}

std::unique_ptr<S3ColdStore> OpenAt(const S3Place& at, S3ColdOptions options = Options()) {
  auto store = S3ColdStore::Open(at, std::move(options), Random::FromEntropy());
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

std::chrono::system_clock::time_point Later() {
  return std::chrono::system_clock::now() + std::chrono::hours(1);
}

class S3Harness : public ColdStoreHarness {
 public:
  explicit S3Harness(S3ColdOptions options) : store_(OpenAt(NewPlace(), std::move(options))) {}
  // Nothing is under way any more.
  ~S3Harness() override { EXPECT_EQ(*store_->RemoveLeftovers("", Later()), 0U); }
  ColdStore& store() override { return *store_; }

 private:
  std::unique_ptr<S3ColdStore> store_;
};

ColdStoreFactory S3(S3ColdOptions options) {
  return [options] { return std::make_unique<S3Harness>(options); };
}

S3ColdOptions SmallPagesAndLargeParts() {
  S3ColdOptions options = Options();
  options.page_entries_max = 2;
  options.part_bytes = uint64_t{64} << 20;
  return options;
}

INSTANTIATE_TEST_SUITE_P(S3, ColdStoreConformance, testing::Values(S3(Options())));
INSTANTIATE_TEST_SUITE_P(S3SmallPagesAndLargeParts, ColdStoreConformance,
                         testing::Values(S3(SmallPagesAndLargeParts())));

// Writes more than a part, then dies; returns when it is dead.
void DieWhileWriting(const S3Place& at) {
  const pid_t child = fork();
  if (child == 0) {
    auto store = OpenAt(at);
    auto file = store->Create("job/step/shard");
    _exit((*file)->Append(AsBytes(RandomBytes(9 << 20))).ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(S3ColdStore, WhatAKilledWriterLeavesIsFound) {
  const auto hour = std::chrono::hours(1);
  const S3Place at = NewPlace();
  DieWhileWriting(at);
  auto store = OpenAt(at);
  EXPECT_EQ(NamesIn(*store), Names());
  EXPECT_EQ(store->Get("job/step/shard", kMost).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(store->Put("job/other", "x").ok());
  EXPECT_EQ(*store->RemoveLeftovers("", Later() - 2 * hour), 0U) << "it may be alive";
  EXPECT_EQ(*store->RemoveLeftovers("elsewhere", Later()), 0U);
  EXPECT_EQ(*store->RemoveLeftovers("job", Later()), 1U);
  EXPECT_EQ(*store->RemoveLeftovers("job", Later()), 0U);
  EXPECT_TRUE(WriteColdFile(*store, "job/step/shard", "whole").ok());
  EXPECT_EQ(NamesIn(*store), Names({"job/other", "job/step/shard"}));
}

TEST(S3ColdStore, AWriterTakenForDeadIsTold) {
  auto store = OpenAt(NewPlace());
  auto file = store->Create("d/file");
  ASSERT_TRUE((*file)->Append(AsBytes(RandomBytes(9 << 20))).ok());
  EXPECT_EQ(*store->RemoveLeftovers("", Later()), 1U);
  const absl::Status status = (*file)->Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_EQ((*file)->Finish(), status);
  EXPECT_EQ(NamesIn(*store), Names());
}

TEST(S3ColdStore, AWholeBucketIsAPlace) {
  const S3Place whole{.bucket = place.bucket, .prefix = ""};
  auto store = OpenAt(whole);
  const std::string name = NewPlace().prefix + "/of/it";
  ASSERT_TRUE(store->Put(name, "x").ok());
  EXPECT_EQ(*store->Get(name, 1), "x");
  EXPECT_TRUE(store->Remove(name).ok());
  EXPECT_EQ(store->Describe(), "s3://" + place.bucket);
}

S3ColdOptions With(std::vector<std::pair<std::string, std::string>> variables) {
  S3ColdOptions options = Options();
  options.pace.attempts = 3;
  options.environment.variable = [variables, own = options.environment.variable](const char* name) {
    for (const auto& [known, value] : variables) {
      if (known == name) return value;
    }
    return own(name);
  };
  return options;
}

absl::Status Opened(const S3Place& at, S3ColdOptions options) {
  return S3ColdStore::Open(at, std::move(options), Random(1)).status();
}

TEST(S3ColdStore, SaysWhatIsWrongWithItsPlaceAndItsCredentials) {
  using absl::StatusCode;
  const absl::Status key = Opened(NewPlace(), With({{"AWS_ACCESS_KEY_ID", "nobody"}}));
  EXPECT_EQ(key.code(), StatusCode::kPermissionDenied) << key;
  EXPECT_THAT(std::string(key.message()), HasSubstr("InvalidAccessKeyId"));
  const absl::Status secret = Opened(NewPlace(), With({{"AWS_SECRET_ACCESS_KEY", "wrong-one"}}));
  EXPECT_EQ(secret.code(), StatusCode::kPermissionDenied) << secret;
  EXPECT_THAT(std::string(secret.message()), HasSubstr("SignatureDoesNotMatch"));
  EXPECT_THAT(std::string(secret.message()), testing::Not(HasSubstr("wrong-one")));
  const absl::Status bucket = Opened({.bucket = "not-there", .prefix = "p"}, Options());
  EXPECT_EQ(bucket.code(), StatusCode::kFailedPrecondition) << bucket;
  EXPECT_THAT(std::string(bucket.message()), HasSubstr("needed the bucket 'not-there' at http"));
  const absl::Status away = Opened(
      NewPlace(), With({{"AWS_ENDPOINT_URL", "http://127.0.0.1:9"}, {"AWS_ENDPOINT_URL_S3", ""}}));
  EXPECT_EQ(away.code(), StatusCode::kUnavailable) << away;
  EXPECT_THAT(std::string(away.message()), HasSubstr("3 attempts"));
}

}  // namespace
}  // namespace unreft

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  const auto place = unreft::durable::ParseS3Place(argc == 2 ? argv[1] : "");
  if (!place.ok()) {
    std::fprintf(stderr, "%s\n", std::string(place.status().message()).c_str());
    return 2;
  }
  unreft::place = *place;
  return RUN_ALL_TESTS();
}
