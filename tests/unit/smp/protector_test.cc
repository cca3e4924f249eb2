// After a loss a node's share of a restored version's protection is made anew, whatever it takes.
#include "tests/unit/smp/protector_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::seconds;

using ProtectorTest = ProtectorFixture;

// It was given up in the turn that asked for guards, before one had its pages.
TEST_F(ProtectorTest, AFreshNodeMakesItsShareAnewWhenAGuardHasItsPages) {
  Remake();
  EXPECT_FALSE(IsGuarded());
  EXPECT_EQ(log_lines_.Count("version 1:9: its protection is not restored on node 0 yet"), 1U);
  Settle(seconds(1));
  ExpectGuarded();
}

// A decision counted on it, and the daemon that started after it quarantined it or forgot it.
TEST_F(ProtectorTest, VerifyingMendsWhatTheNextProcessBeginsWith) {
  Remake();
  Settle(seconds(1));
  Guard* guard = nullptr;
  InTurn([&] {
    guard = protector_->guards().Complete(kVersion);
    ASSERT_NE(guard, nullptr);
    guard->view->header().geometry.record_offset ^= 1;
    guard->view->header().state.fetch_xor(1);
  });
  ExpectGuarded();
  const auto view = GuardView::Check(guard->segment->bytes());
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->state(), GuardState::kComplete);
}

// With another's in its place there were as many as members, and the daemon ended.
TEST_F(ProtectorTest, AnAnnouncementOfAnotherGroupsNodeStandsForNoMembers) {
  StartOther(NodeSlot{5}, [](Peers&) {});
  AnnounceRequest request;
  SetVersion(kNext, request);
  request.set_block_bytes(kBlockBytes);
  ASSERT_TRUE(Call(NodeSlot{5}, "announce", request.SerializeAsString()).ok());
  EXPECT_TRUE(protector_->Held().empty());
  ASSERT_TRUE(Call(NodeSlot{1}, "announce", request.SerializeAsString()).ok());
}

// Of two versions each had the last guard of some node; neither was ever complete, and the ranks
// had no slot for a third.
TEST_F(ProtectorTest, AVersionFailsWhereANewerOneHasTheLastGuard) {
  NameMemories("a");
  Remake();
  Settle(seconds(1));
  ExpectGuarded();  // what is committed has one of two guards
  AnnounceSlab("a", /*has_slab=*/true, kLater);
  AnnounceSlab("a", /*has_slab=*/true, kNext);
  Settle(seconds(2));
  const auto failures = [this] {
    std::map<Version, std::string> found;
    InTurn([&] { found = protector_->Failures(); });
    return found;
  };
  EXPECT_THAT(failures(),
              testing::ElementsAre(testing::Pair(
                  kNext, "no guard is free, there are 2, one of them for version 1:14")));
  EXPECT_GE(changes_, 1);

  InTurn([&] {
    state_->record->SetCommitted(kLater, 1);
    protector_->OnCommitted(kLater);
  });
  EXPECT_THAT(failures(), testing::IsEmpty());
}

// The usual case: it waits until the one before it is committed.
TEST_F(ProtectorTest, AVersionWaitsForAGuardThatAnOlderOneHas) {
  NameMemories("a");
  Remake();
  Settle(seconds(1));
  AnnounceSlab("a", /*has_slab=*/true, kNext);
  AnnounceSlab("a", /*has_slab=*/true, kLater);
  Settle(seconds(2));
  InTurn([&] { EXPECT_THAT(protector_->Failures(), testing::IsEmpty()); });
}

// Its groups may be others than those that this node knows: the view comes with the timeline.
TEST_F(ProtectorTest, AVersionOfATimelineThatIsYetToBeHeardOfIsNotEncoded) {
  constexpr Version kOfTheNext{Timeline{2}, Step{3}};
  EXPECT_TRUE(Announce(kOfTheNext).ok());
  Settle(seconds(1));
  EXPECT_EQ(announced_[kOfTheNext], 0);
  InTurn([&] {
    const recovery::TimelineOrigin opened{Timeline{2}, kVersion};
    state_->record->AdoptTimelines({{Timeline{1}, Version{}}, opened}, /*took_part=*/false);
    protector_->OnJobChange();
  });
  Settle();
  EXPECT_EQ(announced_[kOfTheNext], 1);
}

// Sessions count the processes of one memory. One that came back, by chance with the number of the
// one that had its slot meanwhile, was never told, and nothing was committed any more.
TEST_F(ProtectorTest, AProcessOfAnotherMemoryIsToldThoughItsSessionHasTheSameNumber) {
  EXPECT_TRUE(Announce(kNext).ok());
  Settle();
  EXPECT_EQ(announced_[kNext], 1);
  const auto becomes = [this](const std::string& incarnation) {
    InTurn([&] {
      job_.present[NodeSlot{1}].set_incarnation(incarnation);
      protector_->OnJobChange();
    });
    Settle();
    return announced_[kNext];
  };
  EXPECT_EQ(becomes("another"), 2);
  EXPECT_EQ(becomes("another"), 2);
}

// Both nodes had forgotten what the other told of again: each took it for news, made room for it by
// forgetting another, and told everybody, for ever and at the speed of the network.
TEST_F(ProtectorTest, AVersionThatHadToMakeRoomIsNotToldOfAgain) {
  constexpr uint64_t kVersions = 40;  // more than are kept
  const auto version = [](uint64_t i) { return Version{Timeline{1}, Step{20 + i}}; };
  for (int round = 0; round < 3; ++round) {
    for (uint64_t i = 0; i < kVersions; ++i) {
      EXPECT_TRUE(Announce(version(i)).ok());
      Settle();
    }
  }
  for (uint64_t i = 0; i < kVersions; ++i) EXPECT_EQ(announced_[version(i)], 1) << i;
}

// A daemon that had not heard that the store went back took itself for the node, and what it
// announced was encoded in the place of the node's slabs.
TEST_F(ProtectorTest, AnAnnouncementOfAMemoryThatTheViewDoesNotNameIsRefused) {
  ViewMember& member = *job_.view.value.add_members();
  member.set_slot(1);
  member.set_incarnation("named");
  AnnounceRequest request;
  SetVersion(kNext, request);
  request.set_block_bytes(kBlockBytes);
  request.set_incarnation("another");
  const auto refused = Call(NodeSlot{1}, "announce", request.SerializeAsString()).status();
  EXPECT_TRUE(absl::IsAborted(refused)) << refused;
  request.set_incarnation("named");
  EXPECT_TRUE(Call(NodeSlot{1}, "announce", request.SerializeAsString()).ok());
}

// With extras they may be more than a message holds.
TEST_F(ProtectorTest, TheGroupsRecordIsToldWithoutReplicas) {
  Remake();
  Settle(seconds(1));
  MetaRequest request;
  SetVersion(kVersion, request);
  const auto answer = Call(NodeSlot{1}, "record", request.SerializeAsString());
  ASSERT_TRUE(answer.ok()) << answer.status();
  GuardRecord record;
  ASSERT_TRUE(record.ParseFromString(*answer));
  EXPECT_EQ(CodingOf(record.group(), record.members()),
            CodingOf(record_of_other_.group(), record_of_other_.members()));
  EXPECT_EQ(record.descriptions_size(), 0);
  EXPECT_GT(record.description_bytes(), 0U);
}

TEST_F(ProtectorTest, MemoryThatIsLackingForItIsAskedForAgain) {
  const uint64_t bytes_max = host_.bytes_max();
  host_.set_bytes_max(host_.bytes_used());
  Remake();
  Settle(seconds(10));
  EXPECT_FALSE(IsGuarded());
  EXPECT_GE(log_lines_.Count("no protection"), 1U);
  host_.set_bytes_max(bytes_max);
  Settle(seconds(10));
  ExpectGuarded();
}

TEST_F(ProtectorTest, PagesThatAreNotToBeHadAreAskedForAgain) {
  // Enough for the pages of the headers, as others take the rest meanwhile.
  Remake();
  const uint64_t bytes_max = host_.bytes_max();
  host_.set_bytes_max(host_.bytes_used());
  Settle(seconds(10));
  EXPECT_FALSE(IsGuarded());
  host_.set_bytes_max(bytes_max);
  Settle(seconds(10));
  ExpectGuarded();
}

TEST_F(ProtectorTest, AskedForAgainBeforeThereIsAGuardItIsOfTheNewestRecord) {
  record_of_other_.mutable_members(1)->mutable_slabs(0)->set_generation(4);
  Remake();
  record_of_other_.mutable_members(1)->mutable_slabs(0)->set_generation(5);
  Remake();
  Settle(seconds(1));
  ExpectGuarded();
}

TEST_F(ProtectorTest, WhatWaitsForAGuardEndsWhenSomethingElseIsCommitted) {
  Remake();
  InTurn([&] {
    state_->record->SetCommitted(kNext, 1);
    protector_->OnCommitted(kNext);
  });
  Settle(seconds(1));
  EXPECT_FALSE(IsGuarded());
  InTurn([&] {
    for (Guard* guard : protector_->guards().All()) EXPECT_EQ(guard->phase, GuardPhase::kFree);
  });
}

// What describes the slab may be larger than was said.
TEST_F(ProtectorTest, AGuardThatCannotBeSealedIsFreeAgain) {
  manifest_.resize(1 << 20);
  Remake();
  Settle(seconds(1));
  EXPECT_EQ(log_lines_.Count("no protection: version 1:9:"), 1U);
  InTurn([&] {
    for (Guard* guard : protector_->guards().All()) EXPECT_EQ(guard->phase, GuardPhase::kFree);
  });
  manifest_ = "manifest";
  Remake();
  Settle(seconds(1));
  ExpectGuarded();
}

TEST_F(ProtectorTest, ARecordOfAnotherGroupIsRefused) {
  record_of_other_.mutable_group()->set_slots(0, 7);
  Remake();
  EXPECT_EQ(log_lines_.Count("version 1:9: the group's record is of other members"), 1U);
  EXPECT_TRUE(protector_->guards().All().empty());
}

}  // namespace
}  // namespace unreft::smp
