// What a rank had stored beside its tensors: this one's, and that of each rank that saved a version
// when there was another number of them.

#include <algorithm>
#include <span>

#include "base/crc32c.h"
#include "tests/unit/snapshot/restore_fixture.h"

namespace unreft::snapshot {
namespace {

using RestoredExtrasTest = RestoreFixture;

TEST_F(RestoredExtrasTest, ExtrasOfAnotherNodeAreTaken) {
  const std::string extras = "extras";
  daemon_.decision->extras.remote = extras;
  daemon_.decision->extras.remote_crc = Crc32c(std::as_bytes(std::span(extras)));
  daemon_.decision->extras.has_remote = true;
  StartClient();
  const auto restored = RestoreBegin();
  ASSERT_TRUE(restored.ok()) << restored.status();
  ASSERT_TRUE(restored->extras.has_value());
  const auto bytes = std::as_bytes(std::span(extras));
  EXPECT_TRUE(std::ranges::equal(*restored->extras, bytes));
}

TEST_F(RestoredExtrasTest, EmptyExtrasAreNotNoExtras) {
  daemon_.decision->extras.has_remote = true;
  StartClient();
  const auto restored = RestoreBegin();
  ASSERT_TRUE(restored.ok()) << restored.status();
  ASSERT_TRUE(restored->extras.has_value());
  EXPECT_TRUE(restored->extras->empty());
}

// --- what another number of ranks has saved ---

TEST_F(RestoredExtrasTest, ItIsToldThatAnotherNumberOfRanksSavedIt) {
  options_.any_world = true;
  daemon_.decision->source_world = 4;
  StartClient();
  const auto restored = RestoreBegin();
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->source_world, 4U);
  EXPECT_FALSE(restored->extras.has_value());
  EXPECT_TRUE(daemon_.Got<RestoreRequest>().at(0).any_world);
}

TEST_F(RestoredExtrasTest, AnOlderDaemonsDecisionIsOfAsManyRanks) {
  StartClient();
  EXPECT_EQ(RestoreBegin()->source_world, 1U);
  EXPECT_FALSE(daemon_.Got<RestoreRequest>().at(0).any_world) << "it was not asked for";
}

TEST_F(RestoredExtrasTest, TheExtrasOfEachRankThatSavedItAreRead) {
  const std::string extras = "of rank 3";
  daemon_.extras[Rank{3}] = {
      .remote = extras, .remote_crc = Crc32c(std::as_bytes(std::span(extras))), .has_remote = true};
  daemon_.extras[Rank{0}] = {};
  StartClient();
  ASSERT_TRUE(RestoreBegin().ok());
  const auto stored = RestoreExtras(Rank{3});
  ASSERT_TRUE(stored.ok()) << stored.status();
  ASSERT_TRUE(stored->has_value());
  EXPECT_TRUE(std::ranges::equal(**stored, std::as_bytes(std::span(extras))));
  const auto none = RestoreExtras(Rank{0});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->has_value());
  EXPECT_TRUE(absl::IsOutOfRange(RestoreExtras(Rank{4}).status()));
  daemon_.extras[Rank{3}].remote_crc += 1;
  ExpectFailed(RestoreExtras(Rank{3}).status(), absl::StatusCode::kDataLoss,
               "9 bytes of extras of another node need CRC");
}

TEST_F(RestoredExtrasTest, ExtrasAreReadOfARestoreThatIsUnderWay) {
  daemon_.extras[Rank{0}] = {};
  StartClient();
  ExpectRefused(RestoreExtras(Rank{0}).status(), absl::StatusCode::kFailedPrecondition,
                "needed a restore that has begun");
  ASSERT_TRUE(RestoreBegin().ok());
  InTurn([&] { actor_->RestoreEnd(); });
  ExpectRefused(RestoreExtras(Rank{0}).status(), absl::StatusCode::kFailedPrecondition,
                "needed a restore that has begun");
  EXPECT_EQ(daemon_.Count<ExtrasRequest>(), 0U);
}

// It would end the session of who asks.
TEST_F(RestoredExtrasTest, AnOlderDaemonIsNotAskedForExtras) {
  daemon_.knows = FrameType::kPlanPage;
  StartClient();
  ASSERT_TRUE(RestoreBegin().ok());
  ExpectRefused(RestoreExtras(Rank{0}).status(), absl::StatusCode::kUnavailable, "older release");
  EXPECT_EQ(daemon_.Count<ExtrasRequest>(), 0U);
}

TEST_F(RestoredExtrasTest, CorruptExtrasOfAnotherNodeAreRefused) {
  daemon_.decision->extras.remote = "extras";
  daemon_.decision->extras.remote_crc = 0x1234;
  daemon_.decision->extras.has_remote = true;
  StartClient();
  ASSERT_TRUE(Connect().ok());
  const absl::Status status = RestoreBegin().status();
  ExpectFailed(status, absl::StatusCode::kDataLoss,
               "6 bytes of extras of another node need CRC 00001234, found ");
}

}  // namespace
}  // namespace unreft::snapshot
