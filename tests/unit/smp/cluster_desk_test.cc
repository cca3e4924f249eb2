// Questions about the whole job: asked of node 0, which asks node 1, that may say anything.

#include "smp/node/cluster_desk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/unit/smp/member_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ClusterDeskTest : public MemberFixture {
 protected:
  ClusterDeskTest() {
    options_.nodes = 2;
    leader_ = &Join(1, true);
    StartMember();
    ViewRecord view;
    view.set_number(3);
    for (const uint64_t slot : {0, 1}) {
      ViewMember& member = *view.add_members();
      member.set_slot(slot);
      member.set_incarnation(slot == 0 ? AsBytes(record_->incarnation())
                                       : PresenceOf(slot).incarnation());
    }
    Put("view", view);
    state_.emplace(NodeSeams{*executor_, pool_, random_, segments_, *records_, processes_, log_});
    state_->options = options_;
    InTurnOf(*leader_->executor, [this] {
      leader_->peers->Answer<ExposureRequest, ExposureReply>(
          "exposure", [this](NodeSlot, ExposureRequest, auto done) { done(exposure_); });
      leader_->peers->Answer<QuestionRequest, QuestionReply>(
          "question", [this](NodeSlot, QuestionRequest request, auto done) {
            asked_.push_back(request.verb());
            if (silent_) return;
            QuestionReply reply;
            reply.set_json(answer_);
            done(std::move(reply));
          });
    });
    InTurnOf(*process_, [this] {
      desk_ = std::make_unique<ClusterDesk>(
          *state_, *member_, [this](const AdminRequest& request, ClusterDesk::Reply reply) {
            reply(AdminReply{absl::OkStatus(), R"({"own":")" + request.verb + '"' + own_ + "}"});
          });
    });
    Settle();
  }
  ~ClusterDeskTest() override {
    process_->Kill();
    desk_.reset();
  }

  AdminReply Ask(const std::string& arguments) {
    std::optional<AdminReply> reply;
    InTurnOf(*process_, [&] {
      desk_->Answer({"cluster", arguments}, [&](AdminReply answer) { reply = std::move(answer); });
    });
    Settle(std::chrono::seconds(10));
    return reply.value_or(AdminReply{absl::UnknownError("no answer"), ""});
  }
  nlohmann::json AskStatus() {
    const AdminReply reply = Ask(R"({"of":"status","timeout_ms":2000})");
    EXPECT_TRUE(reply.status.ToStatus().ok()) << reply.status.ToStatus();
    return nlohmann::json::parse(reply.result);
  }
  std::vector<std::string> Problems() { return AskStatus()["problems"]; }

  std::optional<NodeState> state_;  // over the records of the member's process
  Other* leader_ = nullptr;
  ExposureReply exposure_;
  std::string answer_ = R"({"pid":7,"problem":""})";
  std::string own_;  // what this node answers beside the verb
  bool silent_ = false;
  std::vector<std::string> asked_;
  std::unique_ptr<ClusterDesk> desk_;
};

TEST_F(ClusterDeskTest, HasWhatEachNodeSays) {
  const nlohmann::json job = AskStatus();
  EXPECT_EQ(job["members"][0]["status"]["own"], "status");
  EXPECT_EQ(job["members"][1]["status"]["pid"], 7);
  EXPECT_EQ(job["members"][1]["error"], nullptr);
  EXPECT_THAT(job["problems"], IsEmpty());
  EXPECT_EQ(nlohmann::json::parse(Ask(R"({"of":"verify"})").result)["members"][0]["verify"]["own"],
            "verify");
}

TEST_F(ClusterDeskTest, AsksNobodyUnlessItIsAsked) {
  EXPECT_TRUE(Ask("{}").status.ToStatus().ok());
  for (const char* arguments : {R"({"of":"fresh-start"})", R"({"of":"cluster"})"}) {
    EXPECT_EQ(Ask(arguments).status.ToStatus().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(asked_, IsEmpty());
}

TEST_F(ClusterDeskTest, OneThatDoesNotAnswerIsNamed) {
  silent_ = true;
  EXPECT_THAT(Problems(), Contains(HasSubstr("node 1 does not answer")));
  Leave(*leader_);
  Settle(std::chrono::seconds(4));
  EXPECT_THAT(Problems(),
              Contains(AnyOf(HasSubstr("node 1 is absent"), HasSubstr("node 1 is lost"))));
}

TEST_F(ClusterDeskTest, ANodeThatIsLeftOutIsAProblemOnlyWithRanks) {
  ViewRecord view = member_->job().view.value;
  Group& group = *view.add_groups();
  group.add_slots(0);
  group.set_k(1);
  Put("view", view);
  Settle();
  EXPECT_THAT(Problems(), IsEmpty());
  answer_ = R"({"pid":7,"problem":"","ranks":[{"rank":1}]})";
  EXPECT_THAT(Problems(), Contains(HasSubstr("node 1 has ranks and is left out")));
  silent_ = true;
  EXPECT_THAT(Problems(), IsEmpty()) << "nothing is asked of it";
}

// Whoever leads without it writes no copies.
TEST_F(ClusterDeskTest, ADirectoryOfCopiesThatNotAllKnowIsAProblem) {
  own_ = R"(,"durable":null)";
  answer_ = R"({"problem":"","durable":null})";
  EXPECT_THAT(Problems(), IsEmpty());
  answer_ = R"({"problem":"","durable":{"dir":"/mnt"}})";
  EXPECT_THAT(Problems(), Contains(HasSubstr("node 0 was started without the --export-dir that "
                                             "node 1 has")));
  own_ = R"(,"durable":{"dir":"/mnt"})";
  EXPECT_THAT(Problems(), IsEmpty());
}

TEST_F(ClusterDeskTest, SaysWhatStandsInTheWay) {
  answer_ = R"({"problem":"its slot is another's","starting":false})";
  EXPECT_THAT(Problems(), Contains("node 1: its slot is another's"));
  answer_ = R"({"problem":"its slot is another's","starting":true})";
  EXPECT_THAT(Problems(), IsEmpty());
  exposure_.set_world(2);
  exposure_.set_step(5);
  EXPECT_THAT(Problems(), IsEmpty()) << "nobody knows yet what would be restored";
  exposure_.set_restorable_known(true);
  EXPECT_THAT(Problems(), Contains(HasSubstr("not whole any more")));
  kv_store_.Kill();
  Settle(std::chrono::seconds(30));
  EXPECT_THAT(Problems(), Contains(HasSubstr("the meta store does not answer")));
}

TEST_F(ClusterDeskTest, NamesWhoWasRefused) {
  RefusedRecord refused;
  refused.set_place(2);
  refused.set_address("node2");
  refused.set_why("pins is 1 here,\n0 in the job. Start it with --pins 0.");
  Put("refused/2", refused);
  EXPECT_EQ(AskStatus()["refused"][0]["place"], 2);
  EXPECT_THAT(Problems(),
              Contains("the daemon at node2 was refused: pins is 1 here,\\n0 in the job. Start it "
                       "with --pins 0."));
}

// Another node's words are neither commands to a terminal nor too deep for us.
TEST_F(ClusterDeskTest, WhatOthersSayIsChecked) {
  const std::string deep(100000, '[');
  for (const std::string& bad : {std::string("[]"), std::string("{"), deep, "{\"a\":" + deep}) {
    answer_ = bad;
    EXPECT_THAT(Problems(), Contains(HasSubstr("no JSON object"))) << bad.substr(0, 10);
  }
  answer_ = R"({"problem":"\u001b[2Jone\ntwo","x":{"y":["\u0007"]}})";
  EXPECT_THAT(Problems(), Contains(R"(node 1: \x1b[2Jone\ntwo)"));
  EXPECT_EQ(AskStatus()["members"][1]["status"]["x"]["y"][0], R"(\x07)");
  answer_ = R"({"problem":7,"starting":"no"})";
  EXPECT_THAT(Problems(), IsEmpty());
}

TEST_F(ClusterDeskTest, AnswersOthersWhatItsOwnDeskSays) {
  absl::StatusOr<QuestionReply> reply = absl::UnknownError("no answer");
  const auto ask = [&](const std::string& verb) {
    QuestionRequest request;
    request.set_verb(verb);
    InTurnOf(*leader_->executor, [&] {
      leader_->peers->Ask<QuestionReply>(NodeSlot{0}, "question", request, std::chrono::seconds(1),
                                         [&](auto answer) { reply = std::move(answer); });
    });
    Settle(std::chrono::seconds(2));
  };
  ask("versions");
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->json(), R"({"own":"versions"})");
  ask("fresh-start");
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(reply.status().message()),
              AllOf(HasSubstr("fresh-start"), Not(HasSubstr("own"))));
}

}  // namespace
}  // namespace unreft::smp
