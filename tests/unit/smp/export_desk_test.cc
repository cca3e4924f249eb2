// Copies that node 0 runs.

#include "tests/unit/smp/export_desk_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(ExportDeskTest, AVersionIsPinnedAndWrittenByWhoHasIt) {
  const AdminReply reply = Export();
  ASSERT_TRUE(reply.status.ToStatus().ok()) << reply.status.ToStatus();
  // What an earlier process of this daemon may have left goes first.
  ASSERT_EQ(pins_.size(), 2u);
  EXPECT_TRUE(pins_[0].unpin());
  EXPECT_FALSE(pins_[1].unpin());
  EXPECT_EQ(pins_[0].owner(), "export-node0");
  EXPECT_EQ(pins_[1].owner(), "export-node0");
  EXPECT_THAT(Whats(), ElementsAre(CopyPartRequest::LOOK, CopyPartRequest::START));
  EXPECT_THAT(asked_[1].ranks(), ElementsAre(0, 1));
  EXPECT_EQ(asked_[1].directory(), "/copies/40");
  EXPECT_EQ(asked_[1].timeline(), kVersion.timeline.value);
  EXPECT_FALSE(asked_[1].has_lead());
  // This node has no slab, and leads all the same.
  ASSERT_EQ(drain_.orders.size(), 1u);
  EXPECT_THAT(drain_.orders[0].ranks(), IsEmpty());
  EXPECT_THAT(drain_.orders[0].lead().nodes(), ElementsAre(0, 1));
  EXPECT_THAT(drain_.orders[0].lead().map(), ElementsAre("model.=m."));
  EXPECT_EQ(drain_.orders[0].lead().order().world(), 2u);
  EXPECT_EQ(Status()["state"], "writing");

  said_.set_written(10);
  said_.set_bytes(20);
  Settle(std::chrono::seconds(1));
  EXPECT_EQ(Status()["written"], 10);
  CopyPartReply done;
  done.set_is_done(true);
  done.mutable_finished()->set_tensors(5);
  done.mutable_finished()->add_left_out("optim.x");
  DrainSays(done);
  Settle(std::chrono::seconds(1));
  const nlohmann::json status = Status();
  EXPECT_EQ(status["state"], "done");
  EXPECT_EQ(status["step"], 40);
  EXPECT_EQ(status["tensors"], 5);
  EXPECT_EQ(status["left_out"], nlohmann::json::array({"optim.x"}));
  EXPECT_TRUE(IsUnpinned());
}

TEST_F(ExportDeskTest, APinThatIsRefusedIsTold) {
  pin_refusal_ = absl::ResourceExhaustedError("0 of 0 free: --pins");
  EXPECT_EQ(nlohmann::json::parse(Export().result)["state"], "pinning");
  EXPECT_THAT(Whats(), IsEmpty());
  EXPECT_EQ(Status()["state"], "failed");
  EXPECT_THAT(Status()["error"].get<std::string>(), HasSubstr("--pins"));
}

TEST_F(ExportDeskTest, RanksThatNobodyHasAreNamed) {
  held_.set_world(4);
  Export();
  EXPECT_THAT(Status()["error"].get<std::string>(), HasSubstr("the slabs of ranks 2, 3"));
  EXPECT_THAT(drain_.orders, IsEmpty());
  EXPECT_TRUE(IsUnpinned());
}

// Its order would have named the run of now: whoever restores would have taken it for that run's.
TEST_F(ExportDeskTest, AVersionThatWasGivenUpSinceIsNotWritten) {
  PutTimeline(Timeline{kVersion.timeline.value + 1});
  Export();
  EXPECT_THAT(Status()["error"].get<std::string>(), HasSubstr("was given up meanwhile"));
  EXPECT_THAT(Whats(), ElementsAre(CopyPartRequest::LOOK));
  EXPECT_THAT(drain_.orders, IsEmpty());
  EXPECT_TRUE(IsUnpinned());
}

// As if a node had ranks 2 and 3, and is there no more.
TEST_F(ExportDeskTest, WhatIsLostOfTheNewestCommitIsDecodedByWhoIsThere) {
  CommitRecord commit = Committed(kVersion, 4);
  for (const uint64_t slot : {1, 2}) {
    Holder& holder = *commit.add_holders();
    holder.set_slot(slot);
    for (const uint64_t rank : {2 * slot - 2, 2 * slot - 1}) holder.add_ranks(rank);
  }
  Put("commit", commit);
  held_.set_world(4);
  Export();
  EXPECT_EQ(Status()["state"], "writing") << Status()["error"];
  ASSERT_THAT(Whats(), ElementsAre(CopyPartRequest::LOOK, CopyPartRequest::START));
  EXPECT_THAT(asked_[1].ranks(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(asked_[1].decode(), ElementsAre(2, 3));
  EXPECT_TRUE(asked_[1].awaits_decoding());
  ASSERT_EQ(asked_[1].holders_size(), 2);
  EXPECT_FALSE(asked_[1].holders(0).is_lost());
  EXPECT_TRUE(asked_[1].holders(1).is_lost());
  EXPECT_THAT(asked_[1].holders(1).ranks(), ElementsAre(2, 3));
  EXPECT_THAT(drain_.orders[0].decode(), IsEmpty());
  EXPECT_TRUE(drain_.orders[0].awaits_decoding()) << "the others are seen late";
}

// An order to node 0 to decode a slab of a group that is not recorded.
class DecodingTest : public ExportDeskTest {
 protected:
  DecodingTest() {
    CopyPartRequest request;
    request.set_what(CopyPartRequest::START);
    request.set_node(0);
    request.set_id("another daemon's");
    request.add_ranks(0);
    request.add_decode(0);
    CopyHolder& holder = *request.add_holders();
    holder.set_slot(2);
    holder.add_ranks(0);
    holder.set_is_lost(true);
    Send(request);
  }
  void Send(const CopyPartRequest& request) {
    InTurnOf(*leader_->executor, [&] {
      leader_->peers->Ask<CopyPartReply>(NodeSlot{0}, "copy-part", request, std::chrono::seconds(1),
                                         [this](auto reply) { answer_ = std::move(reply); });
    });
    Settle(std::chrono::seconds(1));
  }
  const CopyPartReply& Say(CopyPartRequest::What what) {
    CopyPartRequest request;
    request.set_what(what);
    request.set_id("another daemon's");
    Send(request);
    UNREFT_CHECK(answer_.ok(), "{}", answer_.status().ToString());
    return *answer_;
  }

  absl::StatusOr<CopyPartReply> answer_ = absl::UnknownError("no answer");
};

TEST_F(DecodingTest, ItIsDoneBeforeTheDrainBegins) {
  ASSERT_TRUE(answer_.ok()) << answer_.status();
  EXPECT_THAT(drain_.orders, IsEmpty());
  EXPECT_TRUE(Say(CopyPartRequest::ASK).is_running());
  CopyPartRequest another;
  another.set_what(CopyPartRequest::START);
  another.set_node(0);
  another.set_id("a third one's");
  Send(another);
  EXPECT_THAT(answer_.status().message(), HasSubstr("decodes what is lost for another copy"));
}

TEST_F(DecodingTest, NothingIsDecodedBesideADrain) {
  Say(CopyPartRequest::STOP);
  CopyPartRequest written;
  written.set_what(CopyPartRequest::START);
  written.set_node(0);
  written.set_id("a third one's");
  Send(written);
  ASSERT_EQ(drain_.orders.size(), 1U) << answer_.status();
  CopyPartRequest another = written;
  another.set_id("a fourth one's");
  another.add_ranks(0);
  another.add_decode(0);
  for (const bool is_done : {false, true}) {  // and about to end
    CopyPartReply said;
    said.set_is_running(!is_done);
    said.set_is_done(is_done);
    said.set_written(7);
    DrainSays(said);
    Send(another);
    EXPECT_THAT(answer_.status().message(), HasSubstr("is at work on a copy")) << is_done;
    written.set_what(CopyPartRequest::ASK);
    Send(written);
    ASSERT_TRUE(answer_.ok()) << answer_.status();
    EXPECT_EQ(answer_->is_done(), is_done);
  }
  InTurnOf(*process_, [this] { drain_.End(); });
  Send(another);
  EXPECT_TRUE(answer_.ok()) << answer_.status();
}

TEST_F(DecodingTest, ItIsCancelled) {
  Say(CopyPartRequest::STOP);
  const CopyPartReply said = Say(CopyPartRequest::ASK);
  EXPECT_FALSE(said.is_running());
  EXPECT_EQ(said.error(), "it was cancelled");
  EXPECT_EQ(drain_.stops, 0);
  Settle(std::chrono::minutes(2));
  EXPECT_THAT(drain_.orders, IsEmpty());
}

TEST_F(DecodingTest, WhatCannotBeDecodedIsTold) {
  for (int i = 0; i < 40 && Say(CopyPartRequest::ASK).is_running(); ++i) {
  }
  EXPECT_THAT(answer_->error(), HasSubstr("of the lost slabs nobody what those of ranks [0] were"));
  EXPECT_THAT(drain_.orders, IsEmpty());
}

TEST_F(ExportDeskTest, ANodeThatFailsEndsItForAll) {
  Export();
  said_ = CopyPartReply();
  said_.set_error("the disk is full\n");
  Settle(std::chrono::seconds(1));
  EXPECT_THAT(Status()["error"].get<std::string>(), HasSubstr("node 1: the disk is full"));
  EXPECT_THAT(Whats(),
              ElementsAre(CopyPartRequest::LOOK, CopyPartRequest::START, CopyPartRequest::STOP));
  EXPECT_EQ(drain_.stops, 1);
  EXPECT_TRUE(IsUnpinned());
}

TEST_F(ExportDeskTest, ANodeThatDoesNotStartEndsIt) {
  start_refusal_ = absl::FailedPreconditionError("a drain runs there");
  Export();
  EXPECT_THAT(Status()["error"].get<std::string>(),
              AllOf(HasSubstr("node 1"), HasSubstr("a drain runs there")));
  EXPECT_EQ(drain_.stops, 1);
}

TEST_F(ExportDeskTest, OurOwnDrainThatEndsWithoutAWordEndsIt) {
  Export();
  InTurnOf(*process_, [this] { drain_.End(); });
  Settle(std::chrono::seconds(1));
  EXPECT_THAT(Status()["error"].get<std::string>(),
              AllOf(HasSubstr("node 0"), HasSubstr("ended without a word")));
}

// The drain was past the point where it could be stopped.
TEST_F(ExportDeskTest, ACopyThatWasCompletedAllTheSameIsSaidToBe) {
  Export();
  Ask("export-cancel");
  EXPECT_EQ(Status()["state"], "failed");
  CopyPartReply done;
  done.set_is_done(true);
  done.mutable_finished()->set_tensors(5);
  DrainSays(done);
  InTurnOf(*process_, [this] { drain_.End(); });
  EXPECT_EQ(Status()["state"], "done");
  EXPECT_EQ(Status()["tensors"], 5);
}

TEST_F(ExportDeskTest, AWorldThatNobodyCanHaveIsNotBelieved) {
  held_.set_world(uint64_t{1} << 60);
  Export();
  EXPECT_THAT(Status()["error"].get<std::string>(), HasSubstr("no node has a slab"));
}

TEST_F(ExportDeskTest, WithoutProgressForLongItEnds) {
  Export();
  Settle(std::chrono::minutes(11));
  EXPECT_THAT(Status()["error"].get<std::string>(), HasSubstr("nothing has moved"));
  EXPECT_TRUE(IsUnpinned());
}

TEST_F(ExportDeskTest, APartThatNobodyAsksForIsEnded) {
  CopyPartRequest request;
  request.set_what(CopyPartRequest::START);
  request.set_node(0);
  request.set_id("another daemon's");
  InTurnOf(*leader_->executor, [&] {
    leader_->peers->Call(NodeSlot{0}, "copy-part", request.SerializeAsString(),
                         std::chrono::seconds(1), [](const auto&) {});
  });
  Settle(std::chrono::seconds(30));
  EXPECT_EQ(drain_.orders.size(), 1u);
  EXPECT_EQ(drain_.stops, 0);
  Settle(std::chrono::minutes(1));
  EXPECT_EQ(drain_.stops, 1);
}

TEST_F(ExportDeskTest, ANodeThatIsSilentForLongEndsIt) {
  Export();
  silent_ = true;
  Settle(std::chrono::minutes(2));
  EXPECT_THAT(Status()["error"].get<std::string>(), HasSubstr("node 1 does not answer"));
}

TEST_F(ExportDeskTest, OneAtATime) {
  Export();
  const absl::Status second = Ask("export", R"({"dir":"/copies/41"})").status.ToStatus();
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_THAT(std::string(second.message()), HasSubstr("/copies/40"));
  Ask("export-cancel");
  EXPECT_THAT(Status()["error"].get<std::string>(), HasSubstr("cancelled"));
  EXPECT_EQ(drain_.stops, 1);
  InTurnOf(*process_, [this] { drain_.End(); });
  EXPECT_TRUE(Ask("export", R"({"dir":"/copies/41"})").status.ToStatus().ok());
}

TEST_F(ExportDeskTest, ThePinIsRenewedWhileItTakesLong) {
  Export();
  for (int minute = 0; minute < 12; ++minute) {
    said_.set_written(minute);
    Settle(std::chrono::minutes(1));
  }
  EXPECT_GE(pins_.size(), 3u);
  EXPECT_EQ(pins_.back().step(), kVersion.step.value);
  EXPECT_FALSE(pins_.back().unpin());
}

// Of a daemon that leads its job.
class ExportPolicyTest : public ExportDeskTest {
 protected:
  ExportPolicyTest() {
    Leave(*leader_);
    Settle(std::chrono::seconds(5));
    InTurnOf(*process_, [this] {
      desk_.reset();
      desk_.emplace(*state_, *member_, NoBlocks, &drain_,
                    ExportPolicy{"/copies", std::chrono::minutes(30), 3, 1000});
    });
    Settle(std::chrono::seconds(3));
  }

  // What the survey finds.
  void Find(Version version, Duration age) {
    CopyPartReply found;
    found.set_is_done(true);
    found.mutable_newest()->set_timeline(version.timeline.value);
    found.mutable_newest()->set_step(version.step.value);
    found.set_newest_age_ms(std::chrono::duration_cast<std::chrono::milliseconds>(age).count());
    DrainSays(found);
    InTurnOf(*process_, [this] { drain_.End(); });
    Settle(std::chrono::seconds(3));
  }
};

TEST_F(ExportPolicyTest, WhoLeadsLooksWhatThereIsFirst) {
  ASSERT_TRUE(member_->leads());
  ASSERT_EQ(drain_.orders.size(), 1u);
  EXPECT_EQ(drain_.orders[0].what(), CopyPartRequest::SURVEY);
  EXPECT_EQ(drain_.orders[0].directory(), "/copies");
  EXPECT_FALSE(desk_->own().newest().has_value());
  Find(kVersion, std::chrono::minutes(10));
  ASSERT_TRUE(desk_->own().newest().has_value());
  EXPECT_EQ(desk_->own().newest()->version, kVersion);
  EXPECT_GE(desk_->own().AgeOf(*desk_->own().newest()), std::chrono::minutes(10));
  EXPECT_EQ(drain_.orders.size(), 1u);  // nothing is committed
}

TEST_F(ExportPolicyTest, ADirectoryThatCannotBeReadIsLookedAtAgain) {
  CopyPartReply failed;
  failed.set_error("/copies: Stale file handle");
  DrainSays(failed);
  InTurnOf(*process_, [this] { drain_.End(); });
  EXPECT_THAT(desk_->own().last_error(), HasSubstr("Stale file handle"));
  Settle(std::chrono::seconds(30));
  EXPECT_EQ(drain_.orders.size(), 1u);
  Settle(std::chrono::minutes(1));
  EXPECT_EQ(drain_.orders.size(), 2u);
}

TEST_F(ExportDeskTest, TheOrderSaysInWhichFormat) {
  EXPECT_EQ(Status()["formats"], nlohmann::json::array({"dcp", "safetensors"}));
  ASSERT_TRUE(Ask("export", R"({"dir":"/w","format":"safetensors"})").status.ToStatus().ok());
  ASSERT_EQ(drain_.orders.size(), 1u);
  EXPECT_EQ(drain_.orders[0].lead().order().format(), CopyOrder::SAFETENSORS);
  EXPECT_EQ(Status()["format"], "safetensors");
  CopyPartReply done;
  done.set_is_done(true);
  done.mutable_finished()->set_tensors_left_out(7);
  done.mutable_finished()->set_has_index(true);
  DrainSays(done);
  Settle(std::chrono::seconds(1));
  EXPECT_EQ(Status()["tensors_left_out"], 7);
  EXPECT_EQ(Status()["has_index"], true);
  InTurnOf(*process_, [this] { drain_.End(); });
  ASSERT_TRUE(Export().status.ToStatus().ok());
  ASSERT_EQ(drain_.orders.size(), 2u) << Status();
  EXPECT_EQ(drain_.orders[1].lead().order().format(), CopyOrder::DCP);
  EXPECT_EQ(Status()["format"], "dcp");
}

TEST_F(ExportDeskTest, AFormatThatIsNotKnownIsRefused) {
  for (const char* arguments : {R"({"dir":"/a","format":"pickle"})", R"({"dir":"/a","format":7})",
                                R"({"dir":"/a","format":null})"}) {
    const absl::Status status = Ask("export", arguments).status.ToStatus();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << arguments;
    EXPECT_THAT(std::string(status.message()), HasSubstr("[dcp, safetensors]")) << arguments;
  }
  EXPECT_THAT(pins_, IsEmpty());
}

TEST_F(ExportDeskTest, WhatIsNoDirectoryIsRefused) {
  for (const char* arguments :
       {"{}", "[]", "nonsense", R"({"dir":"relative"})", R"({"dir":7})",
        R"({"dir":"/a","step":-1})", R"({"dir":"/a","bytes_per_s":"x"})", "{\"dir\":\"/a\\nb\"}"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Ask("export", arguments).status.ToStatus())) << arguments;
  }
  EXPECT_THAT(pins_, IsEmpty());
}

TEST_F(ExportDeskTest, AnOrderForAnotherNodeIsNotCarriedOut) {
  std::optional<absl::Status> status;
  CopyPartRequest request;
  request.set_what(CopyPartRequest::START);
  request.set_node(5);
  InTurnOf(*leader_->executor, [&] {
    leader_->peers->Call(NodeSlot{0}, "copy-part", request.SerializeAsString(),
                         std::chrono::seconds(1),
                         [&](const auto& reply) { status = reply.status(); });
  });
  Settle(std::chrono::seconds(1));
  ASSERT_TRUE(status);
  EXPECT_TRUE(absl::IsInvalidArgument(*status)) << *status;
  EXPECT_THAT(drain_.orders, IsEmpty());
}

}  // namespace
}  // namespace unreft::smp
