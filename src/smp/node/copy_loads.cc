#include "smp/node/copy_loads.h"

#include <absl/strings/escaping.h>
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "smp/job/cluster_records.h"
#include "smp/node/load_part.h"

namespace unreft::smp {
namespace {

constexpr std::chrono::milliseconds kAgainAfter(100);
// Shorter than ranks wait for a restore (ClientOptions::restore_timeout), so that they are told.
constexpr std::chrono::minutes kStallMax(2);

std::vector<DurableCopy> CopiesOf(const CopyPartReply& said) {
  std::vector<DurableCopy> copies;
  for (const FoundCopy& found : said.found()) {
    copies.push_back({found.directory(), found.order()});
  }
  return copies;
}

}  // namespace

CopyLoads::CopyLoads(NodeState& state, Peers& peers, DrainProcess& drain, std::string directory)
    : state_(state), peers_(peers), drain_(drain), directory_(std::move(directory)) {}

CopyLoads::~CopyLoads() { state_.seams.executor.Cancel(timer_); }

void CopyLoads::Search(Found done) {
  ++search_;
  found_ = std::move(done);
  search_until_ = state_.seams.executor.Now() + kStallMax;
  AskDrain();
}

void CopyLoads::AskDrain() {
  const Time now = state_.seams.executor.Now();
  CopyPartRequest request;
  request.set_what(CopyPartRequest::SEARCH);
  request.set_directory(directory_);
  auto said = std::make_shared<CopyPartReply>();
  said->set_error("the drain ended without a word: see its log");
  const absl::Status status = drain_.Start(
      request.SerializeAsString(),
      [said](const std::string& line) {
        (void)said->ParseFromString(absl::HexStringToBytes(line));
      },
      lifetime_.Bind([this, said, search = search_] {
        if (search != search_ || !found_) return;
        if (said->is_done()) return EndSearch(CopiesOf(*said));
        EndSearch(absl::UnavailableError(CleanText(said->error(), kTextBytesMax)));
      }));
  const bool is_busy = absl::IsFailedPrecondition(status);
  // It looks for something else, or writes a copy of what nobody can restore any more.
  if (is_busy) drain_.Stop();
  const Duration pause = is_busy ? Duration(kAgainAfter) : search_until_ - now;
  state_.seams.executor.Cancel(timer_);
  timer_ = state_.seams.executor.After(
      status.ok() || is_busy ? pause : Duration{},
      lifetime_.Bind([this, is_busy, status, search = search_] {
        if (search != search_ || !found_) return;
        if (!status.ok() && !is_busy) return EndSearch(status);
        if (is_busy && state_.seams.executor.Now() < search_until_) return AskDrain();
        drain_.Stop();
        EndSearch(absl::UnavailableError(
            fmt::format("{} does not answer", CleanText(directory_, kTextBytesMax))));
      }));
}

void CopyLoads::EndSearch(absl::StatusOr<std::vector<DurableCopy>> found) {
  state_.seams.executor.Cancel(timer_);
  std::exchange(found_, nullptr)(std::move(found));
}

void CopyLoads::Cancel() {
  if (found_) drain_.Stop();
  found_ = nullptr;
  loaded_ = nullptr;
  state_.seams.executor.Cancel(timer_);
  if (watch_ != nullptr) watch_->Stop();
}

void CopyLoads::Load(const DurableCopy& copy, std::map<NodeSlot, std::vector<Rank>> homes,
                     Loaded done) {
  if (watch_ != nullptr) watch_->Stop();
  const std::string id = AsBytes(state_.seams.random.NextId());
  std::map<NodeSlot, CopyPartRequest> orders;
  for (const auto& [node, ranks] : homes) {
    CopyPartRequest& order = orders[node];
    order.set_what(CopyPartRequest::LOAD);
    order.set_id(id);
    order.set_node(node.value);
    order.set_directory(copy.directory);
    order.set_timeline(copy.version().timeline.value);
    order.set_step(copy.version().step.value);
    order.set_world(copy.order.world());
    for (const Rank rank : ranks) order.add_ranks(rank.value);
  }
  loaded_ = std::move(done);
  watch_ = std::make_unique<PartWatch>(
      state_, peers_, kLoadPartMethod, id, kStallMax, PartWatch::Orders::kAgain,
      PartWatch::Events{.before_asking = [] { return true; },
                        .on_said =
                            [this] {
                              if (watch_->AreAllDone()) OnWatched(absl::OkStatus());
                            },
                        .on_failed = [this](const absl::Status& why) { OnWatched(why); }});
  watch_->Begin(orders);
}

void CopyLoads::OnWatched(absl::Status status) {
  status.ok() ? watch_->End() : watch_->Stop();
  // In a turn of its own: the watch is still in one.
  state_.seams.executor.Post(
      lifetime_.Bind([done = std::exchange(loaded_, nullptr), status]() mutable {
        if (done) done(status);
      }));
}

}  // namespace unreft::smp
