// After a loss a node's share of a restored version's protection is made anew, whatever it takes.
//
// RS(1,1): node 0 is new in its slot, has no rank and no guard yet; node 1 has the slab of rank 0.

#include "smp/protect/protector.h"

#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/crc32c.h"
#include "smp/job/cluster_records.h"
#include "tests/unit/smp/group_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::seconds;

constexpr Version kNext{Timeline{1}, Step{12}};
constexpr Version kLater{Timeline{1}, Step{14}};
constexpr uint64_t kBlocks = 5;

class ProtectorTest : public GroupFixture {
 protected:
  ProtectorTest() : GroupFixture(1, 1) {
    options_.slots_per_rank = 2;
    *record_of_other_.mutable_group() = group();
    record_of_other_.add_members();
    record_of_other_.add_members()->add_slabs()->set_data_bytes(kBlocks * kBlockBytes);
    record_of_other_.set_member(1);
    Random random(7);
    data_ = RandomBytes(random, kBlocks * kBlockBytes);
    StartOther(NodeSlot{1}, [this](Peers& peers) { ServeOther(peers); });
    StartOwn();
    InTurn([&] {
      state_->record->SetCommitted(kVersion, 1);
      server_ = std::make_unique<SlabServer>(*state_, *own_peers_);
      MakeProtector();
    });
  }
  ~ProtectorTest() override {
    InTurn([&] { protector_.reset(); });
  }

  void MakeProtector() {
    protector_ =
        std::make_unique<Protector>(*state_, *own_peers_, *server_, job_, [this] { ++changes_; });
  }
  // Node 0's daemon is killed, and another has its memory.
  void StartAgain() {
    InTurn([&] {
      protector_.reset();
      MakeProtector();
      EXPECT_TRUE(protector_->Adopt().ok());
    });
  }

  // Node 1.
  void ServeOther(Peers& peers) {
    peers.Answer<MetaRequest, MetaReply>("meta", [this](NodeSlot, auto, auto done) {
      ++manifests_asked_;
      MetaReply reply;
      SlabMeta& slab = *reply.add_slabs();
      slab.set_world(1);
      slab.set_manifest(manifest_);
      slab.set_manifest_crc(Crc32c(std::as_bytes(std::span(manifest_))));
      done(std::move(reply));
    });
    peers.Serve("announce", [this](NodeSlot, const std::string& body, Transport::CallDone done) {
      AnnounceRequest request;
      UNREFT_CHECK(request.ParseFromString(body));
      ++announced_[VersionOf(request)];
      slabs_announced_ = request.slabs_size();
      done("");
    });
    peers.ServeReads([this](NodeSlot, const std::string& body, uint64_t, auto done) {
      ReadRequest request;
      UNREFT_CHECK(request.ParseFromString(body));
      if (!serves_reads_) return done(absl::UnavailableError("not yet"));
      done(SourceOf(std::span(data_).subspan(request.first_block() * kBlockBytes, kBlockBytes)));
    });
  }

  static constexpr uint64_t kReplicaBytes = 4096;

  void Remake() {
    InTurn([&] { protector_->Remake(kVersion, record_of_other_, {kReplicaBytes, kReplicaBytes}); });
  }
  bool IsGuarded() {
    bool guarded = false;
    InTurn([&] { guarded = protector_->RecordOf(kVersion) != nullptr; });
    return guarded;
  }
  void ExpectGuarded() {
    ASSERT_TRUE(IsGuarded());
    std::optional<absl::Status> verified;
    InTurn([&] {
      const auto record = protector_->RecordOf(kVersion);
      EXPECT_EQ(CodingOf(record->group(), record->members()),
                CodingOf(record_of_other_.group(), record_of_other_.members()));
      ASSERT_EQ(record->replicas_size(), 1);
      EXPECT_EQ(record->replicas(0).slot(), 1U);
      EXPECT_EQ(record->replicas(0).slabs_size(), 1);
      protector_->Verify(kVersion, [&](absl::Status status) { verified = std::move(status); });
    });
    Settle();
    EXPECT_EQ(verified, absl::OkStatus());
    EXPECT_EQ(log_lines_.Count("version 1:9: its protection is restored on node 0"), 1U);
  }

  // As the newest view has it.
  void NameMemories(const std::string& of_node_1) {
    InTurn([&] {
      ViewRecord& view = job_.view.value;
      view.clear_members();
      for (const uint64_t slot : {0, 1}) view.add_members()->set_slot(slot);
      view.mutable_members(0)->set_incarnation(AsBytes(state_->record->incarnation()));
      view.mutable_members(1)->set_incarnation(of_node_1);
      protector_->OnJobChange();
    });
    Settle();
  }
  static AnnounceRequest Announcement(const std::string& incarnation, bool has_slab,
                                      Version version = kNext) {
    AnnounceRequest request;
    SetVersion(version, request);
    request.set_block_bytes(kBlockBytes);
    request.set_incarnation(incarnation);
    if (has_slab) request.add_slabs()->set_data_bytes(kBlocks * kBlockBytes);
    request.set_replica_bytes_max(kReplicaBytes);
    return request;
  }
  // Node 1's memory has a slab of the version, or none.
  void AnnounceSlab(const std::string& incarnation, bool has_slab, Version version = kNext) {
    const std::string request = Announcement(incarnation, has_slab, version).SerializeAsString();
    EXPECT_TRUE(Call(NodeSlot{1}, "announce", request).ok());
    Settle();
  }
  // How many slabs of node 1 went into the guard; none: there is no guard.
  std::optional<int> SlabsEncoded() {
    std::optional<int> slabs;
    InTurn([&] {
      const auto record = protector_->RecordOf(kNext);
      if (record != nullptr) slabs = record->members(1).slabs_size();
    });
    return slabs;
  }
  bool IsEncodedOf(const std::string& incarnation) {
    bool is_encoded = false;
    InTurn([&] {
      for (const GuardHeld& held : protector_->Held()) {
        is_encoded |= held.version == kNext && held.encoded.size() == 2 &&
                      held.encoded[1] == std::pair(NodeSlot{1}, incarnation);
      }
    });
    return is_encoded;
  }

  // Node 1 tells of its slabs of the version.
  absl::Status Announce(Version version) {
    AnnounceRequest request;
    SetVersion(version, request);
    request.set_block_bytes(kBlockBytes);
    return Call(NodeSlot{1}, "announce", request.SerializeAsString()).status();
  }

  GuardRecord record_of_other_;
  std::string manifest_ = "manifest";  // of node 1's slab
  std::map<Version, int> announced_;   // to node 1
  int slabs_announced_ = 0;            // the last time
  int manifests_asked_ = 0;            // of node 1
  bool serves_reads_ = true;           // node 1
  int changes_ = 0;                    // that were told
  std::vector<std::byte> data_;
  std::unique_ptr<SlabServer> server_;
  std::unique_ptr<Protector> protector_;
};

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

// What the other has is nothing, and was complete at once: the version held a slot of every rank.
TEST_F(ProtectorTest, AMemoryThatReturnsIsEncodedInPlaceOfTheOther) {
  NameMemories("b");
  AnnounceSlab("b", /*has_slab=*/false);
  NameMemories("a");
  AnnounceSlab("a", /*has_slab=*/true);
  Settle(seconds(2));
  EXPECT_TRUE(IsEncodedOf("a"));
}

// It was freed and made again, because what this daemon hands on was of the memory that had had the
// slot meanwhile; the version was committed just then, on the word of a report.
TEST_F(ProtectorTest, AGuardThatIsOfTheMemoryThatReturnsIsKept) {
  NameMemories("a");
  AnnounceSlab("a", /*has_slab=*/true);
  Settle(seconds(2));
  ASSERT_TRUE(IsEncodedOf("a"));
  StartAgain();
  NameMemories("b");
  AnnounceSlab("b", /*has_slab=*/false);
  NameMemories("a");
  AnnounceSlab("a", /*has_slab=*/true);
  Settle(seconds(2));
  EXPECT_TRUE(IsEncodedOf("a"));
  InTurn([&] {
    EXPECT_EQ(protector_->guards().Complete(kNext)->generation, Generation{1});  // the first
  });
}

// It was complete, and was taken for right.
TEST_F(ProtectorTest, AnAdoptedGuardOfAMemoryThatWasReplacedIsMadeAnew) {
  NameMemories("b");
  AnnounceSlab("b", /*has_slab=*/false);
  Settle(seconds(2));
  ASSERT_TRUE(IsEncodedOf("b"));
  StartAgain();
  NameMemories("a");
  AnnounceSlab("a", /*has_slab=*/true);
  Settle(seconds(2));
  EXPECT_TRUE(IsEncodedOf("a"));
}

// A decision counts on what was reported before it.
TEST_F(ProtectorTest, NoCompleteGuardIsMadeAnewWhileADecisionIsMade) {
  NameMemories("b");
  AnnounceSlab("b", /*has_slab=*/false);
  Settle(seconds(2));
  const auto close = [this](bool closing) {
    InTurn([&] {
      job_.timeline.value.set_closing(closing);
      protector_->OnJobChange();
    });
    Settle(seconds(2));
  };
  close(true);
  NameMemories("a");
  AnnounceSlab("a", /*has_slab=*/true);
  Settle(seconds(2));
  EXPECT_TRUE(IsEncodedOf("b"));
  close(false);
  EXPECT_TRUE(IsEncodedOf("a"));
}

// A daemon that had just started was asked before it heard of its ranks, and said that it had none;
// their slabs were in no guard, and the version held a slot of every rank for ever.
TEST_F(ProtectorTest, SlabsThatAMemberTellsOfLaterAreEncodedToo) {
  NameMemories("a");
  AnnounceSlab("a", /*has_slab=*/false);
  Settle(seconds(2));
  ASSERT_EQ(SlabsEncoded(), 0);
  AnnounceSlab("a", /*has_slab=*/true);
  Settle(seconds(2));
  EXPECT_EQ(SlabsEncoded(), 1);
}

TEST_F(ProtectorTest, AnAnnouncementThatIsLateTakesNothingBack) {
  InTurn([&] { state_->lives_before.emplace_back(); });  // nothing is encoded before it is known
  NameMemories("a");
  AnnounceSlab("a", /*has_slab=*/true);
  AnnounceSlab("a", /*has_slab=*/false);
  InTurn([&] {
    state_->lives_before.clear();
    protector_->OnRanksChange();
  });
  Settle(seconds(2));
  EXPECT_EQ(SlabsEncoded(), 1);
}

TEST_F(ProtectorTest, RanksThatThisNodeHearsOfLaterAreToldOf) {
  NameMemories("a");
  AnnounceSlab("a", /*has_slab=*/true);
  Settle(seconds(2));
  ASSERT_EQ(announced_[kNext], 1);
  ASSERT_EQ(slabs_announced_, 0);
  Slot* slot = nullptr;
  InTurn([&] {
    ASSERT_TRUE(state_->slots->Provide(Rank{0}, {kBlocks * kBlockBytes, 100, 4096}).ok());
  });
  Settle();
  InTurn([&] {
    slot = state_->slots->Grant(Rank{0}, table_.Start(), 2, Attempt{1}, kNext.timeline);
    ASSERT_NE(slot, nullptr);
    slot->registration = std::make_shared<Registration>();
    slot->version = kNext;
    slot->phase = SlotPhase::kCapturing;
    protector_->OnClaimed(kNext);
  });
  Settle(seconds(2));
  EXPECT_EQ(announced_[kNext], 2);
  EXPECT_EQ(slabs_announced_, 1);
}

// What was done without it was begun anew at every change, and never done (rule 18).
TEST_F(ProtectorTest, WhatIsEncodedWithoutALostMemberIsBegunAgainOnceItIsBack) {
  serves_reads_ = false;
  NameMemories("a");
  AnnounceSlab("a", /*has_slab=*/true);
  Settle(seconds(2));
  ASSERT_EQ(manifests_asked_, 1);
  const auto see = [this](bool lost) {
    InTurn([&] {
      job_.view.value.mutable_members(1)->set_lost(lost);
      protector_->OnJobChange();
    });
    Settle(seconds(2));
  };
  for (int i = 0; i < 3; ++i) see(true);
  EXPECT_EQ(manifests_asked_, 1);
  serves_reads_ = true;
  see(false);
  EXPECT_EQ(manifests_asked_, 2);
  EXPECT_EQ(SlabsEncoded(), 1);
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
  unreft::Member& member = *job_.view.value.add_members();
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
  EXPECT_EQ(record.replicas_size(), 0);
  EXPECT_GT(record.replica_bytes(), 0U);
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
