// How a guarding hands parities on to their other holders.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "smp/protect/guarding.h"

namespace unreft::smp {
namespace {

// A holder that asks for nothing during so many retries' time is waited for no longer.
constexpr int kPatienceRetries = 20;

}  // namespace

void Guarding::OnRead(const ReadRequest& request, uint64_t bytes, ReadDone done) {
  const uint64_t positions = slabs_.layout().positions();
  if (request.stripe() != group_.self || request.parity() == 0 ||
      request.parity() >= group_.shape.m || request.blocks() != 1 ||
      request.first_block() >= positions || bytes != options_.block_bytes) {
    return done(absl::InvalidArgumentError(
        fmt::format("version {}: parity {} of stripe {} at {} of {} positions is not handed on by "
                    "node {}",
                    version_, request.parity(), request.stripe(), request.first_block(), positions,
                    seams_.peers.self())));
  }
  if (Ending() || mode_ == Mode::kAlone) return done(absl::NotFoundError("nothing is handed on"));
  if (request.coding() != 0 && request.coding() != coding_) {
    return done(absl::NotFoundError(
        fmt::format("version {}: node {} encodes other slabs", version_, seams_.peers.self())));
  }
  ParityTaker& holder = holders_[request.parity()];
  holder.asks = true;
  holder.asked = std::max<uint64_t>(holder.asked, request.first_block());
  Waiting waiting{request, bytes, std::move(done)};
  if (!TryServe(waiting)) {
    if (waiting_.size() >= options_.reads_waiting_max) {
      return waiting.done(absl::ResourceExhaustedError(
          fmt::format("{} reads of parities wait already", waiting_.size())));
    }
    waiting_.push_back(std::move(waiting));
    // Handed on before, and lost on the way or let go: encoded once more.
    const uint64_t position = request.first_block();
    if (encoded_[position] && encoding_again_.insert(position).second) {
      StartEncoding(0, position, true);
    }
  }
  Serve();
  RunRules();
}

bool Guarding::TryServe(Waiting& waiting) {
  const auto it = fresh_.find(waiting.request.first_block());
  if (it == fresh_.end()) return false;
  const std::shared_ptr<Encoding>& encoding = it->second.encoding;
  const uint32_t parity = waiting.request.parity();
  ReadHeader header;
  header.add_crcs(encoding->parity_crcs[parity]);
  for (const uint32_t crc : encoding->input_crcs) header.add_input_crcs(crc);
  ReadSource source;
  source.header = header.SerializeAsString();
  source.parts.push_back(encoding->parity[parity]);
  source.hold = encoding;
  waiting.done(std::move(source));
  it->second.served.insert(parity);
  return true;
}

// Whether the holder of that parity has still to ask for the position. It asks in order, a window
// at a time; when it comes back to an earlier one, that is encoded again.
bool Guarding::IsExpected(uint64_t position, uint32_t parity, const Fresh& fresh) const {
  const ParityTaker& holder = holders_[parity];
  return holder.asks && !fresh.encoding->again && !fresh.served.contains(parity) &&
         holder.asked < position + options_.protect_window;
}

void Guarding::Serve() {
  waiting_.remove_if([this](Waiting& waiting) { return TryServe(waiting); });
  std::erase_if(fresh_, [this](const auto& entry) {
    for (uint32_t parity = 1; parity < group_.shape.m; ++parity) {
      if (IsExpected(entry.first, parity, entry.second)) return false;
    }
    return true;
  });
}

// Who has all its parities, from an earlier life of this daemon or by its own work, never asks.
void Guarding::BePatient(const Lane& lane) {
  const bool waits = !fresh_.empty() && lane.running == 0;
  if (!waits) seams_.executor.Cancel(std::exchange(patience_, TimerId::kNone));
  if (!waits || patience_ != TimerId::kNone) return;
  patience_ = seams_.executor.After(kPatienceRetries * options_.read_retry, [this] {
    patience_ = TimerId::kNone;
    LosePatience();
  });
}

void Guarding::LosePatience() {
  for (uint32_t parity = 1; parity < group_.shape.m; ++parity) {
    const bool waits = std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiting& waiting) {
      return waiting.request.parity() == parity;
    });
    if (waits) continue;
    for (const auto& [position, fresh] : fresh_) {
      if (IsExpected(position, parity, fresh)) holders_[parity].asks = false;
    }
  }
  Serve();
  RunRules();
}

void Guarding::RefuseWaiting() {
  for (Waiting& waiting : std::exchange(waiting_, {})) {
    waiting.done(absl::NotFoundError(fmt::format("version {} is encoded no longer", version_)));
  }
}

}  // namespace unreft::smp
