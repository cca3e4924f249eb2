#include "smp/job/member.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/format.h"
#include "smp/job/follower.h"
#include "smp/job/own_versions.h"
#include "smp/job/report_maker.h"
#include "smp/job/round_questions.h"

namespace unreft::smp {

// What needs the node's protection, which needs the peers.
struct Member::Parts {
  Parts(Member& member, Protection& node_protection)
      : protection(node_protection),
        versions(member.record_, member.records(), member.node_, protection),
        follower(member.kept_, member.record_, versions, member.node_, protection,
                 [this] { reporter.Report(); }),
        reports({member.record_, member.kept_, follower, versions, member.node_, protection,
                 member.leading_.knows_copies()}),
        reporter({member.seams_.executor, member.peers_, member.seams_.log}, reports, member.node_,
                 member.options_, [&member] { return member.FollowSeatAndFindLeader(); }),
        questions(member.peers_, {member.record_, follower, reports, member.node_, protection},
                  member.options_) {}

  Protection& protection;
  OwnVersions versions;
  Follower follower;
  ReportMaker reports;
  Reporter reporter;
  RoundQuestions questions;
};

Member::Member(Seams seams, NodeRecord& record, KeptRecords& kept, Node& node,
               const NodeOptions& options)
    : seams_(seams),
      record_(record),
      kept_(kept),
      node_(node),
      options_(options),
      store_(seams.kv, seams.executor, seams.random, seams.log, options.job, [this] { Follow(); }),
      seat_(seams.kv, seams.executor, seams.log, store_, record, options, seams.transport.address(),
            {.on_presence = [this] { Follow(); },
             .on_leadership = [this] { Follow(); },
             .on_standing = [this](const Standing& standing) { node_.OnStanding(standing); },
             .on_refused = [this](const absl::Status& why) { node_.OnRefused(why); },
             .probe =
                 [this](const std::string& address, absl::AnyInvocable<void(bool)> done) {
                   peers_.Probe(address, options_.presence_ttl, std::move(done));
                 }}),
      refused_(seams.log, store_.state()),
      peers_(seams.executor, seams.transport, store_.state(), options.job, options.node,
             record.incarnation(), [this] { store_.ReadAgain(); },
             {.page_bytes = options.answer_page_bytes,
              .answer_bytes_max = options.answer_bytes_max,
              // The longest that a page of what is asked for in pages may be on its way.
              .kept_for =
                  std::max({options.call_timeout, options.read_timeout, options.verify_timeout})}),
      calls_(seams.executor, store_, peers_, options, [this] { return MayOrder(); }),
      leading_({seams.executor, store_, seat_, peers_, seams.random, seams.log, seams.faults},
               options),
      ever_asked_(seams.executor, store_, kept, options) {}

Member::~Member() = default;

void Member::Start(Protection& protection) {
  parts_ = std::make_unique<Parts>(*this, protection);
  peers_.Answer<KeptRequest, KeptReply>("kept", [this](NodeSlot, const KeptRequest&, auto done) {
    KeptReply reply;
    reply.set_copy(kept_.Encoded());
    done(std::move(reply));
  });
  store_.Expect(kept_.store_id(), kept_.stamp(), kept_.records().timeline.value);
  store_.Start();
}

void Member::AskDecision(Attempt attempt, uint64_t world, std::vector<Asker> askers) {
  parts_->follower.Ask({attempt, world, std::move(askers)});
  Report();
}

void Member::ReportClaimed(Version version, Rank rank) {
  if (!parts_->versions.OnClaimed(version, rank)) return;
  parts_->protection.OnClaimed(version);
  parts_->reporter.ReportSoon();
}

void Member::ReportSealed(Version version, Rank rank) {
  if (!parts_->versions.OnSealed(version, rank)) return;
  parts_->protection.OnSealed(version);
  HaveAllSealed(version) ? Report() : parts_->reporter.ReportSoon();
}

// The job waits for the last rank of a node, and for none before it.
bool Member::HaveAllSealed(Version version) const {
  const std::vector<HeldSlab> held = node_.Inventory();
  const auto sealed =
      std::ranges::count(held, version, [](const HeldSlab& slab) { return slab.slab.version; });
  return static_cast<uint64_t>(sealed) >= node_.RanksServed();
}

void Member::ReportFailed(Version version, Rank rank, const std::string& reason) {
  if (parts_->versions.OnFailed(version, rank, reason)) Report();
}

void Member::Report() {
  if (parts_ != nullptr) parts_->reporter.Report();
}

RanksHere Member::RanksNow() const {
  RanksHere ranks;
  ranks.served = node_.RanksServed();
  ranks.training = node_.RanksTraining();
  const auto& asking = parts_->follower.asking();
  if (!asking) return ranks;
  ranks.asking = asking->askers.size();
  ranks.attempt = asking->attempt;
  ranks.world = asking->world;
  return ranks;
}

// A store that has decided nothing says nothing of it. Whoever has found its job writes that into
// one that was lost; whoever came to another job with its records, and has not been taken in, does
// not: those of that job are about to do so.
void Member::LookWhose() {
  if (!store_.ready()) return;
  if (store_.state().timeline.value.first_timeline() != 0) {
    has_another_job_ = kept_.IsOfAnotherJob(store_.state());
  } else if (kept_.has_found_job()) {
    has_another_job_ = false;
  }
}

// Where the store has another job than what lies here is of, this daemon comes to it with nothing,
// and gives that up once it is taken in. It may have been started for that job by mistake, or be
// refused there.
void Member::FollowSeat() {
  LookWhose();
  if (!HasStoreAnotherJob()) {
    return seat_.Follow(RanksNow(), KnownHere{kept_.stamp(), record_.view()});
  }
  if (kept_.has_found_job()) return seat_.Follow(RanksNow(), std::nullopt);
  seat_.Follow(RanksNow(), KnownHere{.is_of_another_job = true});
  if (!store_.state().IsSeeded() || !seat_.is_ours()) return;
  LeaveOtherJob();
  FollowSeat();
}

absl::Status Member::MayOrder() const {
  if (!HasStoreAnotherJob()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("node {} has another job of this name than the meta store: nothing is ordered "
                  "from here, see 'unreft status'",
                  options_.node));
}

// Slots are freed by the next decision, guards of a timeline with a higher number would stay.
void Member::LeaveOtherJob() {
  kept_.LeaveJob();
  record_.LeaveJob();
  for (const GuardHeld& guard : parts_->protection.Held()) parts_->protection.Drop(guard.version);
}

void Member::Follow() {
  peers_.Follow();
  FollowSeat();
  leading_.Follow();
  if (!store_.ready()) return;
  refused_.Follow();
  parts_->reporter.FollowLeader(LeaderKey());
  if (!HasStoreAnotherJob()) parts_->follower.Follow(store_.state());
  parts_->protection.OnJobChange();
  ever_asked_.Follow();
  Report();
  leading_.RunRules();
}

meta::HeldKey Member::LeaderKey() const {
  return {store_.state().leader_created, store_.state().leader_value};
}

// Ranks come and go while the records stay as they are, and the seat depends on both.
std::optional<Reporter::Listener> Member::FollowSeatAndFindLeader() {
  FollowSeat();
  const auto& leader = store_.state().leader;
  if (!store_.ready() || !leader.exists() || !seat_.is_present()) return std::nullopt;
  // Nothing is told of what another job has left here.
  if (HasStoreAnotherJob()) return std::nullopt;
  return Reporter::Listener{NodeSlot{leader.value.slot()}, LeaderKey()};
}

}  // namespace unreft::smp
