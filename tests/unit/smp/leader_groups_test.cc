// A view that the meta store has lost is made anew: with the groups that stored versions are
// encoded in, whatever failure domains there are by then (docs/protocol.md, rule 19).

#include "smp/job/job_settings.h"
#include "tests/unit/smp/leader_fixture.h"

namespace unreft::smp {
namespace {

constexpr uint64_t kEight = 8;

using Slots = std::vector<uint64_t>;

std::vector<Slots> SlotsOf(const google::protobuf::RepeatedPtrField<unreft::Group>& groups) {
  std::vector<Slots> slots;
  for (const unreft::Group& group : groups) {
    slots.emplace_back(group.slots().begin(), group.slots().end());
  }
  return slots;
}

const std::vector<Slots> kDealt = {{0, 2, 4, 6}, {1, 3, 5, 7}};

// Eight nodes, each in a failure domain of its own.
class LeaderGroupsTest : public LeaderFixture {
 protected:
  LeaderGroupsTest() : LeaderFixture(kEight, true) {
    UNREFT_CHECK(SlotsOf(view().groups()) == kDealt, "{}", view().DebugString());
    Ask(1);
    committed_ = At(1, 5);
  }

  void CommitIn(const std::vector<Slots>& groups) { CommitIn(groups, committed_); }
  void CommitIn(const std::vector<Slots>& groups, Version version) {
    ProtectIn(groups, version);
    ReportAll();
    ReportAll();
    UNREFT_CHECK(VersionOf(commit()) == version);
  }

  void ProtectIn(const std::vector<Slots>& groups, Version version) {
    for (const auto& [slot, ranks] : homes_) {
      for (const Rank rank : ranks) Seal(slot, version, rank);
    }
    for (const Slots& group : groups) {
      for (size_t member = 0; member < group.size(); ++member) GuardIn(group, member, version);
    }
  }

  // A complete guard of that member, with two parities.
  void GuardIn(const Slots& group, size_t self, Version version, uint64_t coding = 0) {
    VersionHolding& holding = nodes_.at(NodeSlot{group[self]}).versions[version];
    SetVersion(version, holding);
    holding.set_guarded(true);
    holding.set_coding(coding != 0 ? coding : 100 + group[0]);
    holding.set_data_chunks(static_cast<uint32_t>(group.size()) - 2);
    for (const uint64_t slot : group) {
      EncodedMember& encoded = *holding.add_encoded();
      encoded.set_slot(slot);
      encoded.set_incarnation(nodes_.at(NodeSlot{slot}).report.incarnation());
    }
    for (size_t back = 1; back <= 2; ++back) {
      const uint64_t of = group[(self + group.size() - back) % group.size()];
      DescriptionHolding& description = *holding.add_descriptions();
      description.set_slot(of);
      description.add_ranks(of);
      description.set_world(world_);
    }
  }

  // The node is destroyed, a spare of that domain waits, and the store has lost everything.
  void Replace(NodeSlot lost, const std::string& domain) {
    InTurn([&] { nodes_.erase(lost); });
    LoseStore();
    AddSpare(kEight, domain);
    ReportAll();
    Settle(std::chrono::seconds(5));
    TakeSlot(kEight, lost);
  }

  // The spare begins to report, of a memory in which nothing is.
  void TakeSlot(uint64_t place, NodeSlot slot) {
    ReportingNode& node = nodes_[slot];
    InTurn([&] {
      node.transport = *network_.NewTransport(*executor_, fmt::format("node{}", place));
      node.peers = std::make_unique<Peers>(*executor_, *node.transport, store_->state(), "job",
                                           slot, RandomId{});
      Serve(node);
      node.record.set_session(1);
      node.report.set_session(1);
      node.report.set_incarnation(fmt::format("spare{}", place));
    });
    UNREFT_CHECK(view().members_size() == kEight, "{}", view().DebugString());
    UNREFT_CHECK(store_->state().present.contains(slot));
    ReportAll();
  }

  void ExpectRestored(const std::set<uint64_t>& lost) {
    Ask(2);
    ASSERT_EQ(decision().kind(), static_cast<uint32_t>(DecisionKind::kRestored))
        << decision().DebugString();
    EXPECT_EQ(decision().version_timeline(), committed_.timeline.value);
    EXPECT_EQ(decision().version_step(), committed_.step.value);
    std::set<uint64_t> decoded;
    for (const Holder& holder : decision().holders()) {
      if (holder.lost()) decoded.insert(holder.slot());
    }
    EXPECT_EQ(decoded, lost);
    EXPECT_EQ(SlotsOf(commit().groups()), kDealt) << "where each slab's group is looked for";
  }

  Version committed_;
};

TEST_F(LeaderGroupsTest, ALostNodeWhoseDomainNobodyKnowsChangesNoGroup) {
  CommitIn(kDealt);
  Replace(NodeSlot{1}, "h8");
  EXPECT_EQ(SlotsOf(view().groups()), kDealt);
  EXPECT_EQ(VersionOf(commit()), committed_);
  EXPECT_EQ(SlotsOf(commit().groups()), kDealt);
  ExpectRestored({1});
}

TEST_F(LeaderGroupsTest, GuardsOfTwoGroupsAreNotTakenForOne) {
  CommitIn(kDealt);
  Replace(NodeSlot{3}, "");
  EXPECT_EQ(SlotsOf(view().groups()), kDealt);
  ExpectRestored({3});
}

TEST_F(LeaderGroupsTest, ASpareOfAnotherDomainThatTookASlotChangesNoGroup) {
  Leave(NodeSlot{1});
  AddSpare(kEight, "a domain that is dealt out first");
  TakeSlot(kEight, NodeSlot{1});
  Ask(2);
  const Version version{Timeline{decision().timeline()}, Step{6}};
  CommitIn(kDealt, version);
  // The store comes back empty, and the node with the memory and the domain that it has now.
  ReportingNode& node = nodes_.at(NodeSlot{1});
  const PresenceRecord presence = store_->state().present.at(NodeSlot{1});
  InTurn([&] {
    spares_.clear();
    node.presence = std::make_unique<meta::LeasedKey>(
        *kv_, *executor_, log_, store_->PresenceKey(NodeSlot{1}), options_.presence_ttl,
        [](const std::string&) { return true; }, [] {});
    node.presence->Hold(presence.SerializeAsString());
  });
  LoseStore();
  ReportAll();
  ReportAll();
  ASSERT_EQ(view().members_size(), kEight);
  EXPECT_EQ(view().members(1).failure_domain(), "a domain that is dealt out first");
  EXPECT_EQ(SlotsOf(view().groups()), kDealt);
  EXPECT_EQ(SlotsOf(commit().groups()), kDealt);
}

// A job of up to six nodes that begins with four.
class LeaderGrowsTest : public LeaderFixture {
 protected:
  LeaderGrowsTest() : LeaderFixture(kNodes, true, 2) {}
};

TEST_F(LeaderGrowsTest, WhoComesIsInWithTheNextDecision) {
  EXPECT_EQ(SlotsOf(view().groups()), (std::vector<Slots>{{0, 1, 2, 3}}));
  Ask(1);
  EXPECT_EQ(SlotsOf(view().groups()), (std::vector<Slots>{{0, 1, 2, 3}}));
  for (const uint64_t slot : {4, 5}) {
    Join(NodeSlot{slot});
    Settle();
    Report(NodeSlot{slot});
  }
  for (auto& [slot, node] : nodes_) node.report.set_any_groups(true);
  EXPECT_EQ(view().members(5).failure_domain(), "h5");
  EXPECT_EQ(SlotsOf(view().groups()), (std::vector<Slots>{{0, 1, 2, 3}})) << "until the next";
  Ask(2);
  EXPECT_EQ(decision().kind(), static_cast<uint32_t>(DecisionKind::kFresh));
  EXPECT_EQ(SlotsOf(view().groups()), (std::vector<Slots>{{0, 1, 2, 3, 4, 5}}));
  EXPECT_EQ(view().groups(0).k(), 4U);
}

TEST_F(LeaderGroupsTest, TheFirstViewWaitsForTheReportOfEveryNodeThatIsThere) {
  CommitIn(kDealt);
  LoseStore();
  for (uint64_t slot = 0; slot + 1 < kEight; ++slot) Report(NodeSlot{slot});
  Settle();
  EXPECT_EQ(view().number(), 0U);
  Report(NodeSlot{kEight - 1});
  Settle();
  EXPECT_EQ(view().number(), 2U);
  EXPECT_EQ(SlotsOf(view().groups()), kDealt);
}

// Of several versions the committed one says it, and the others are judged by groups of their own.
TEST_F(LeaderGroupsTest, TheCommittedVersionSaysWhichGroupsThereAre) {
  CommitIn(kDealt);
  ProtectIn({{0, 1, 2, 3}, {4, 5, 6, 7}}, At(1, 6));
  Replace(NodeSlot{1}, "h8");
  EXPECT_EQ(VersionOf(commit()), committed_);
  EXPECT_EQ(SlotsOf(view().groups()), kDealt);
  EXPECT_EQ(SlotsOf(commit().groups()), kDealt);
  Ask(2);
  ASSERT_EQ(decision().kind(), static_cast<uint32_t>(DecisionKind::kRestored));
  EXPECT_EQ(decision().version_step(), 6U) << "it can be decoded, too";
  EXPECT_EQ(SlotsOf(commit().groups()), (std::vector<Slots>{{0, 1, 2, 3}, {4, 5, 6, 7}}));
}

// The options ask for other groups by now: for what comes. What is stored is in its own.
TEST_F(LeaderGroupsTest, WhatIsStoredIsDecodedFromItsOwnGroups) {
  CommitIn(kDealt);
  nodes_.at(NodeSlot{1}).versions.clear();
  options_.parity_chunks = 1;
  options_.data_chunks = 3;
  LoseStore();
  ReportAll();
  ASSERT_EQ(view().members_size(), kEight);
  for (const unreft::Group& group : view().groups()) EXPECT_EQ(group.k(), 3U);
  EXPECT_EQ(SlotsOf(commit().groups()), kDealt);
  ExpectRestored({1});
  for (const unreft::Group& group : commit().groups()) EXPECT_EQ(group.k(), 2U);
}

// A daemon that was started otherwise than the job, and led before it had found that out, formed
// groups that bear no loss.
TEST_F(LeaderGroupsTest, WhoIsNotStartedAsTheJobDecidesNothing) {
  SettingsRecord settings = SettingsOf(options_, "a");
  settings.set_parity_chunks(options_.parity_chunks + 1);
  InTurn([&] {
    meta::Txn txn;
    txn.then.push_back(
        meta::PutOp{"unreft/job/settings", settings.SerializeAsString(), meta::LeaseId{}});
    kv_->Commit(std::move(txn), [](auto) {});
  });
  Settle();
  const uint64_t before = view().number();
  Leave(NodeSlot{3});
  EXPECT_EQ(view().number(), before) << "nobody is lost by its word";
}

// Node 1 is lost, and of the three that keep its chunks two are, too: nobody is to ask for ever.
TEST_F(LeaderGroupsTest, WhatCannotBeDecodedIsSaidToBeUnrecoverable) {
  CommitIn(kDealt);
  for (const uint64_t slot : {3, 5}) nodes_.at(NodeSlot{slot}).versions.clear();
  Replace(NodeSlot{1}, "h8");
  Ask(2);
  EXPECT_EQ(decision().kind(), static_cast<uint32_t>(DecisionKind::kFailed));
  EXPECT_NE(decision().status_message().find("1:5 lacks ranks 1, 3, 5"), std::string::npos)
      << decision().status_message();
}

}  // namespace
}  // namespace unreft::smp
