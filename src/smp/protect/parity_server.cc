#include "smp/protect/parity_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/format.h"

namespace unreft::smp {
namespace {

// A taker that asks for nothing during so many retries' time is waited for no longer.
constexpr int kPatienceRetries = 20;

}  // namespace

// Encoding again does not touch the guard: what is there is right already.
ParityServer::ParityServer(const GuardTask& task, GuardActivity& activity, bool is_encoded)
    : task_(task),
      activity_(activity),
      encoder_(task, activity, task.coded->group.self, /*kept=*/std::nullopt),
      encoded_(task.coded->layout().positions(), is_encoded),
      takers_(task.coded->group.shape.m) {}

ParityServer::~ParityServer() {
  task_.seams.executor.Cancel(patience_);
  RefuseWaiting();
}

void ParityServer::Close() {
  closed_ = true;
  encoder_.Cancel();
  RefuseWaiting();
}

void ParityServer::OnRead(const ReadRequest& request, uint64_t bytes, ReadDone done) {
  const uint64_t positions = task_.coded->layout().positions();
  if (request.stripe() != task_.coded->group.self || request.parity() == 0 ||
      request.parity() >= task_.coded->group.shape.m || request.blocks() != 1 ||
      request.first_block() >= positions || bytes != task_.options.block_bytes) {
    return done(absl::InvalidArgumentError(fmt::format(
        "version {}: parity {} of stripe {} at {} of {} positions is not handed on by node {}",
        task_.coded->version, request.parity(), request.stripe(), request.first_block(), positions,
        task_.seams.peers.self())));
  }
  if (closed_) return done(absl::NotFoundError("nothing is handed on"));
  if (request.coding() != 0 && request.coding() != task_.coded->coding) {
    return done(absl::NotFoundError(fmt::format("version {}: node {} encodes other slabs",
                                                task_.coded->version, task_.seams.peers.self())));
  }
  ParityTaker& taker = takers_[request.parity()];
  taker.asks = true;
  taker.asked = std::max<uint64_t>(taker.asked, request.first_block());
  Waiting waiting{request, std::move(done)};
  if (!TryServe(waiting)) {
    if (waiting_.size() >= task_.options.reads_waiting_max) {
      return waiting.done(absl::ResourceExhaustedError(
          fmt::format("{} reads of parities wait already", waiting_.size())));
    }
    waiting_.push_back(std::move(waiting));
    // Handed on before, and lost on the way or let go.
    if (encoded_[request.first_block()]) EncodeAgain(request.first_block());
  }
  Serve();
  activity_.Look();
}

void ParityServer::EncodeAgain(uint64_t position) {
  if (!encoding_again_.insert(position).second) return;
  encoder_.Encode(position, [this](std::shared_ptr<const EncodedPosition> encoded) {
    encoding_again_.erase(encoded->position);
    fresh_[encoded->position] = {encoded, /*again=*/true, {}};
    Serve();
  });
}

void ParityServer::OnEncoded(std::shared_ptr<const EncodedPosition> encoded) {
  const uint64_t position = encoded->position;
  encoded_[position] = true;
  if (closed_ || task_.coded->group.shape.m == 1) return;
  fresh_[position] = {std::move(encoded), /*again=*/false, {}};
  Serve();
}

bool ParityServer::TryServe(Waiting& waiting) {
  const auto it = fresh_.find(waiting.request.first_block());
  if (it == fresh_.end()) return false;
  const std::shared_ptr<const EncodedPosition>& encoded = it->second.encoded;
  const uint32_t parity = waiting.request.parity();
  ReadHeader header;
  header.add_crcs(encoded->parity_crcs[parity]);
  for (const uint32_t crc : encoded->input_crcs) header.add_input_crcs(crc);
  ReadSource source;
  source.header = header.SerializeAsString();
  source.parts.push_back(encoded->parities[parity]);
  source.hold = encoded;
  waiting.done(std::move(source));
  it->second.served.insert(parity);
  return true;
}

// Whether the taker of that parity has still to ask for the position. It asks in order, a window at
// a time; when it comes back to an earlier one, that is encoded again.
bool ParityServer::IsExpected(uint64_t position, uint32_t parity, const Fresh& fresh) const {
  const ParityTaker& taker = takers_[parity];
  return taker.asks && !fresh.again && !fresh.served.contains(parity) &&
         taker.asked < position + task_.options.protect_window;
}

void ParityServer::Serve() {
  waiting_.remove_if([this](Waiting& waiting) { return TryServe(waiting); });
  std::erase_if(fresh_, [this](const auto& entry) {
    for (uint32_t parity = 1; parity < task_.coded->group.shape.m; ++parity) {
      if (IsExpected(entry.first, parity, entry.second)) return false;
    }
    return true;
  });
}

// Who has all its parities, from an earlier life of this daemon or by its own work, never asks.
void ParityServer::BePatient(bool is_idle) {
  const bool waits = !fresh_.empty() && is_idle;
  if (!waits) task_.seams.executor.Cancel(std::exchange(patience_, TimerId::kNone));
  if (!waits || patience_ != TimerId::kNone) return;
  patience_ = task_.seams.executor.After(kPatienceRetries * task_.options.read_retry, [this] {
    patience_ = TimerId::kNone;
    LosePatience();
  });
}

void ParityServer::LosePatience() {
  for (uint32_t parity = 1; parity < task_.coded->group.shape.m; ++parity) {
    const bool waits = std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiting& waiting) {
      return waiting.request.parity() == parity;
    });
    if (waits) continue;
    for (const auto& [position, fresh] : fresh_) {
      if (IsExpected(position, parity, fresh)) takers_[parity].asks = false;
    }
  }
  Serve();
  activity_.Look();
}

void ParityServer::DoWithout(uint32_t member) {
  const ec::CodeShape shape = task_.coded->group.shape;
  for (uint32_t parity = 1; parity < shape.m; ++parity) {
    if (task_.coded->layout().MemberOf(task_.coded->group.self, shape.k + parity) != member)
      continue;
    takers_[parity].asks = false;
  }
  Serve();
}

void ParityServer::RefuseWaiting() {
  for (Waiting& waiting : std::exchange(waiting_, {})) {
    waiting.done(
        absl::NotFoundError(fmt::format("version {} is encoded no longer", task_.coded->version)));
  }
}

}  // namespace unreft::smp
