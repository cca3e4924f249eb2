#include "smp/job/round_questions.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>

#include "tests/unit/smp/two_peers_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RoundQuestionsTest : public TwoPeersFixture {
 protected:
  // Round 3 is closed.
  RoundQuestionsTest() {
    job_.timeline.value = Chain(1, 3);
    job_.timeline.value.set_closing(true);
    job_.timeline.modified = meta::Revision{1};
    InTurn([this] {
      follower_.Follow(job_);
      node_.closing.at(0)();
    });
    Hold(At(1, 5), Rank{0});
    Hold(At(1, 5), Rank{1});
    Hold(At(1, 4), Rank{0});
  }

  void Hold(Version version, Rank rank) {
    auto manifest = std::make_shared<layout::SlotManifest>();
    manifest->rank = rank;
    manifest->world = 2;
    manifest->version = version;
    manifest->block_bytes = 64;
    node_.held.push_back({{.version = version, .rank = rank}, std::move(manifest)});
  }
  VerifyRequest Question(uint64_t round) {
    VerifyRequest request;
    request.set_round(round);
    SetVersion(At(1, 5), request);
    request.set_session(record_->session().value);
    request.set_incarnation(AsBytes(record_->incarnation()));
    return request;
  }
  absl::StatusOr<VerifyReply> AskToVerify(const VerifyRequest& request) {
    return Ask<VerifyReply>("verify", request);
  }

  std::unique_ptr<KeptRecords> kept_ = OpenKept();
  OwnVersions versions_{*record_, job_, node_, protection_};
  Follower follower_{*kept_, *record_, versions_, node_, protection_, [] {}};
  ReportMaker reports_{{*record_, *kept_, follower_, versions_, node_, protection_}};
  RoundQuestions questions_{peers_, {*record_, follower_, reports_, node_, protection_}, options_};
};

TEST_F(RoundQuestionsTest, OnlyWhatWasClosedForTheRoundIsRead) {
  const auto reply = AskToVerify(Question(2));
  EXPECT_TRUE(absl::IsFailedPrecondition(reply.status())) << reply.status();
  EXPECT_THAT(reply.status().message(), HasSubstr("has closed round 3, round 2 was asked for"));
  EXPECT_THAT(node_.verified, IsEmpty());
}

// What another memory, or an earlier process of this one, has found says nothing of this one.
TEST_F(RoundQuestionsTest, AnotherMemoryOrProcessIsNotAnsweredFor) {
  VerifyRequest other_memory = Question(3);
  other_memory.set_incarnation("another");
  EXPECT_TRUE(absl::IsFailedPrecondition(AskToVerify(other_memory).status()));
  VerifyRequest other_process = Question(3);
  other_process.set_session(record_->session().value + 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(AskToVerify(other_process).status()));
  EXPECT_THAT(node_.verified, IsEmpty());
}

TEST_F(RoundQuestionsTest, SlabsAndGuardAreReadAndWhatIsLeftIsTold) {
  const uint64_t before = reports_.Make().number();
  const auto reply = AskToVerify(Question(3));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_THAT(node_.verified, ElementsAre(At(1, 5)));
  EXPECT_THAT(protection_.verified, ElementsAre(At(1, 5)));
  EXPECT_EQ(reply->problem(), "");
  EXPECT_EQ(reply->versions_size(), 2);
  EXPECT_EQ(reply->report_number(), before + 1) << "later than every report before";
  EXPECT_THAT(reply->manifests(), IsEmpty()) << "nobody asked for them";
}

TEST_F(RoundQuestionsTest, TheSlabsProblemIsToldBeforeTheGuards) {
  protection_.problem = absl::DataLossError("a parity has rotted");
  EXPECT_EQ(AskToVerify(Question(3))->problem(), "a parity has rotted");
  node_.verifies = false;
  absl::StatusOr<VerifyReply> reply = absl::UnknownError("no answer yet");
  other_executor_->Deliver(Duration{}, [&] {
    other_peers_.Ask<VerifyReply>(NodeSlot{0}, "verify", Question(3), std::chrono::seconds(1),
                                  [&](auto answer) { reply = std::move(answer); });
  });
  Settle();
  InTurn([this] { node_.verifying.at(0)(absl::DataLossError("a slab has rotted")); });
  Settle();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->problem(), "a slab has rotted");
}

TEST_F(RoundQuestionsTest, ManifestsAreThoseOfTheVersionAndOfWhatIsKeptForOthers) {
  protection_.described_manifests = {"of rank 7"};
  VerifyRequest request = Question(3);
  request.set_want_manifests(true);
  const auto reply = AskToVerify(request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_EQ(reply->manifests_size(), 3);
  EXPECT_EQ(layout::DecodeManifest(reply->manifests(1))->rank, Rank{1});
  EXPECT_EQ(reply->manifests(2), "of rank 7");
}

TEST_F(RoundQuestionsTest, ManifestsAreAskedForOfOneVersionOrOfWhatIsRegistered) {
  ManifestRequest request;
  SetVersion(At(1, 4), request);
  const auto reply = Ask<ManifestReply>("manifests", request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_EQ(reply->manifests_size(), 1);
  EXPECT_EQ(layout::DecodeManifest(reply->manifests(0))->version, At(1, 4));
  request.set_registered(true);
  EXPECT_EQ(Ask<ManifestReply>("manifests", request)->manifests_size(), 0) << "nobody is";
}

}  // namespace
}  // namespace unreft::smp
