#include "smp/protect/stripe_encoder.h"

#include <utility>

#include "base/crc32c.h"
#include "smp/protect/all_data.h"

namespace unreft::smp {
namespace {

void EncodeParities(const ec::ErasureCode& code, const GatheredStripe& gathered,
                    EncodedPosition& encoded) {
  std::vector<std::span<const std::byte>> data;
  encoded.input_crcs.clear();
  for (const GatheredChunk& chunk : gathered.chunks) {
    data.push_back(chunk.bytes);
    encoded.input_crcs.push_back(chunk.crc);
  }
  code.Encode(data, encoded.parities);
  encoded.parity_crcs.clear();
  for (const std::span<std::byte> parity : encoded.parities) {
    encoded.parity_crcs.push_back(Crc32c(parity));
  }
}

}  // namespace

StripeEncoder::StripeEncoder(const GuardTask& task, GuardActivity& activity, uint32_t stripe,
                             std::optional<uint32_t> kept)
    : task_(task),
      activity_(activity),
      stripe_(stripe),
      kept_(kept),
      gatherer_({task.seams.executor, task.seams.pool, task.seams.peers, task.seams.log,
                 task.seams.tiles},
                task.options, TilePurpose::kEncoding) {}

void StripeEncoder::Encode(uint64_t position, Done done) {
  const ec::CodeShape shape = task_.coded->group.shape;
  auto encoded = std::make_shared<EncodedPosition>();  // shared with the pool
  encoded->position = position;
  encoded->parities.resize(shape.m);
  // Where no parity goes to the guard it may be gone by the time that it is encoded.
  std::shared_ptr<Segment> segment;
  if (kept_) {
    segment = task_.guard.segment;
    encoded->parities[*kept_] = task_.guard.view->block(*kept_, position);
  }
  StripeGatherer::Want want;
  want.coded = task_.coded;
  want.stripe = stripe_;
  want.position = position;
  want.more_tiles = shape.m;
  want.make = [encoded, segment = std::move(segment), coded = task_.coded,
               kept = kept_](const GatheredStripe& gathered) {
    const ec::CodeShape of = coded->group.shape;
    for (uint32_t parity = 0; parity < of.m; ++parity) {
      if (parity != kept) encoded->parities[parity] = gathered.tiles[of.k + parity];
    }
    EncodeParities(*coded->code, gathered, *encoded);
    return absl::OkStatus();
  };
  activity_.Begin();
  gatherer_.Gather(
      std::move(want), std::make_unique<AllData>(),
      [this, encoded, done = std::move(done)](absl::StatusOr<GatheredStripe> gathered) mutable {
        if (gathered.ok() && !activity_.is_cancelled()) {
          encoded->tiles = std::move(gathered->tiles);
          done(std::move(encoded));
        }
        activity_.End();
      });
}

}  // namespace unreft::smp
