#include "smp/protect/stripe_gatherer.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "base/crc32c.h"
#include "base/format.h"

namespace unreft::smp {

StripeGatherer::StripeGatherer(Seams seams, const NodeOptions& options, TilePurpose purpose)
    : seams_(std::move(seams)),
      options_(options),
      purpose_(purpose),
      reads_(seams_.executor, seams_.pool, seams_.peers, options.read_timeout, seams_.own) {}

void StripeGatherer::Gather(Want want, std::unique_ptr<SourcePolicy> policy, Done done) {
  auto gathering = std::make_shared<Gathering>();  // shared by its reads and the pool
  const size_t tiles = want.coded->group.shape.k + want.more_tiles;
  gathering->want = std::move(want);
  gathering->policy = std::move(policy);
  gathering->done = std::move(done);
  waiting_.push_back(gathering);
  if (cancelled_) return Cancel();
  seams_.tiles.Take(purpose_, tiles, options_.block_bytes,
                    lifetime_.Bind([this, gathering](TileSet taken) {
                      if (std::erase(waiting_, gathering) == 0) return;
                      ++under_way_;
                      gathering->gathered.tiles = std::move(taken);
                      Run(gathering);
                    }));
}

void StripeGatherer::Cancel() {
  cancelled_ = true;
  reads_.Cancel();
  for (const auto& gathering : std::exchange(waiting_, {})) {
    ++under_way_;
    Again(gathering, absl::OkStatus());
  }
}

void StripeGatherer::Run(const std::shared_ptr<Gathering>& gathering) {
  if (cancelled_) return Again(gathering, absl::OkStatus());
  const Want& want = gathering->want;
  std::vector<uint32_t> landed;
  for (const auto& [chunk, piece] : gathering->pieces) {
    if (piece.has_landed) landed.push_back(chunk);
  }
  const absl::StatusOr<std::vector<uint32_t>> chunks =
      gathering->policy->Choose(*want.coded, want.stripe, want.position, landed);
  if (!chunks.ok()) return Again(gathering, chunks.status());
  Arrange(*gathering, *chunks);
  std::vector<uint32_t> missing;
  for (const auto& [chunk, piece] : gathering->pieces) {
    if (!piece.bytes.empty() && !piece.has_landed) missing.push_back(chunk);
  }
  gathering->reading = static_cast<uint32_t>(missing.size());
  // Beyond the end of all its members' slabs a stripe is zeros that nobody has.
  if (missing.empty()) return Compute(gathering);
  for (const uint32_t chunk : missing) ReadChunk(gathering, chunk);
}

// Gives each chunk a tile; those that were there before keep theirs.
void StripeGatherer::Arrange(Gathering& gathering, const std::vector<uint32_t>& chunks) {
  std::map<uint32_t, Piece> before = std::exchange(gathering.pieces, {});
  std::set<size_t> free;
  for (size_t tile = 0; tile < chunks.size(); ++tile) free.insert(tile);
  for (const uint32_t chunk : chunks) {
    const auto known = before.find(chunk);
    if (known == before.end()) continue;
    free.erase(known->second.tile);
    gathering.pieces.insert(before.extract(known));
  }
  const Want& want = gathering.want;
  for (const uint32_t chunk : chunks) {
    const auto [it, is_new] = gathering.pieces.try_emplace(chunk);
    if (!is_new) continue;
    Piece& piece = it->second;
    piece.tile = free.extract(free.begin()).value();
    const bool is_nowhere = !want.coded->ReadOf(want.stripe, chunk, want.position);
    if (!is_nowhere) piece.bytes = gathering.gathered.tiles[piece.tile];
  }
}

void StripeGatherer::ReadChunk(const std::shared_ptr<Gathering>& gathering, uint32_t chunk) {
  const Want& want = gathering->want;
  const Piece& piece = gathering->pieces.at(chunk);
  ReadRequest request = *want.coded->ReadOf(want.stripe, chunk, want.position);
  request.set_is_suspect(piece.is_suspect && gathering->policy->TellsSuspects());
  reads_.Read(want.coded->HolderOf(want.stripe, chunk), request, piece.bytes,
              [this, gathering, chunk](const absl::StatusOr<ReadHeader>& header) {
                OnRead(gathering, chunk, header);
              });
}

void StripeGatherer::OnRead(const std::shared_ptr<Gathering>& gathering, uint32_t chunk,
                            const absl::StatusOr<ReadHeader>& header) {
  const Want& want = gathering->want;
  if (header.ok()) {
    Piece& piece = gathering->pieces.at(chunk);
    piece.crc = header->crcs(0);
    piece.has_landed = true;
  } else {
    gathering->failure = header.status();
    if (!cancelled_) gathering->policy->OnFailure(*want.coded, want.stripe, chunk);
  }
  if (--gathering->reading > 0) return;
  if (gathering->failure.ok()) return Compute(gathering);
  Again(gathering, std::exchange(gathering->failure, absl::OkStatus()));
}

void StripeGatherer::Compute(const std::shared_ptr<Gathering>& gathering) {
  seams_.pool.Submit([gathering] { gathering->status = CheckAndMake(*gathering); }, seams_.executor,
                     lifetime_.Bind([this, gathering] { OnComputed(gathering); }));
}

absl::Status StripeGatherer::CheckAndMake(Gathering& gathering) {
  const Want& want = gathering.want;
  std::vector<GatheredChunk>& chunks = gathering.gathered.chunks;
  chunks.clear();
  absl::Status status;
  for (auto& [chunk, piece] : gathering.pieces) {
    chunks.push_back({chunk, piece.bytes, piece.crc});
    piece.is_suspect = !piece.bytes.empty() && Crc32c(piece.bytes) != piece.crc;
    if (!piece.is_suspect) continue;
    status = absl::DataLossError(
        fmt::format("chunk {} of stripe {} at {} was not what node {} sent", chunk, want.stripe,
                    want.position, want.coded->HolderOf(want.stripe, chunk)));
  }
  return status.ok() ? gathering.want.make(gathering.gathered) : status;
}

void StripeGatherer::OnComputed(const std::shared_ptr<Gathering>& gathering) {
  if (gathering->status.ok()) return End(gathering, std::move(gathering->gathered));
  const Want& want = gathering->want;
  seams_.log.Warn("version {}: {}; reading it again", want.coded->version,
                  gathering->status.message());
  bool is_any_suspect = false;
  for (auto& [chunk, piece] : gathering->pieces) is_any_suspect |= piece.is_suspect;
  for (auto& [chunk, piece] : gathering->pieces) {
    // What all sources stand by is wrong all the same.
    if (is_any_suspect && !piece.is_suspect) continue;
    piece.has_landed = false;
    if (piece.is_suspect) gathering->policy->OnFailure(*want.coded, want.stripe, chunk);
  }
  Again(gathering, gathering->status);
}

// Another try, unless there is no time for it.
void StripeGatherer::Again(const std::shared_ptr<Gathering>& gathering,
                           const absl::Status& failure) {
  if (!cancelled_ && seams_.executor.Now() < gathering->policy->deadline()) {
    seams_.executor.After(options_.read_retry,
                          lifetime_.Bind([this, gathering] { Run(gathering); }));
    return;
  }
  const absl::Status status =
      cancelled_ ? absl::CancelledError("the gathering was cancelled") : failure;
  seams_.executor.Post(lifetime_.Bind([this, gathering, status] { End(gathering, status); }));
}

void StripeGatherer::End(const std::shared_ptr<Gathering>& gathering,
                         absl::StatusOr<GatheredStripe> result) {
  --under_way_;
  std::exchange(gathering->done, nullptr)(std::move(result));
}

}  // namespace unreft::smp
