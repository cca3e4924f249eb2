#include "smp/protect/stripe_encoder.h"

#include <utility>

#include "base/crc32c.h"
#include "smp/job/cluster_records.h"

namespace unreft::smp {

void StripeEncoder::Encode(uint64_t position, Done done) {
  const ec::CodeShape shape = task_.coded->group.shape;
  auto encoding = std::make_shared<Encoding>();  // shared with the pool
  encoding->encoded = std::make_shared<EncodedPosition>();
  encoding->done = std::move(done);
  EncodedPosition& encoded = *encoding->encoded;
  encoded.position = position;
  encoded.tiles = task_.seams.tiles.Take(shape.n(), task_.options.block_bytes);
  encoded.input_crcs.resize(shape.k);
  encoding->landed.resize(shape.k);
  encoding->suspect.resize(shape.k);
  for (uint32_t source = 0; source < shape.k; ++source) {
    const bool is_there = task_.coded->layout().BlockAt(stripe_, source, position).has_value();
    encoding->data.push_back(is_there ? encoded.tiles[source] : std::span<std::byte>());
  }
  for (uint32_t parity = 0; parity < shape.m; ++parity) {
    encoded.parities.push_back(parity == kept_ ? task_.guard.view->block(parity, position)
                                               : encoded.tiles[shape.k + parity]);
  }
  ReadSources(std::move(encoding));
}

void StripeEncoder::ReadSources(std::shared_ptr<Encoding> encoding) {
  std::vector<uint32_t> missing;
  for (uint32_t source = 0; source < task_.coded->group.shape.k; ++source) {
    if (!encoding->data[source].empty() && !encoding->landed[source]) missing.push_back(source);
  }
  encoding->reading = static_cast<uint32_t>(missing.size());
  // Beyond the end of all its members' slabs a stripe is zeros that nobody has.
  if (missing.empty()) return Compute(std::move(encoding));
  for (const uint32_t source : missing) ReadSource(encoding, source);
}

void StripeEncoder::ReadSource(std::shared_ptr<Encoding> encoding, uint32_t source) {
  ReadRequest request = *task_.coded->ReadOf(stripe_, source, encoding->encoded->position);
  request.set_is_suspect(encoding->suspect[source]);
  const std::span<std::byte> into = encoding->data[source];
  reads_.Read(task_.coded->layout().MemberOf(stripe_, source), request, into,
              [this, encoding = std::move(encoding), source](absl::StatusOr<std::string> bytes) {
                const absl::StatusOr<ReadHeader> header =
                    bytes.ok() ? ParseBlockHeader(*bytes, 0) : bytes.status();
                if (header.ok()) encoding->encoded->input_crcs[source] = header->crcs(0);
                encoding->landed[source] = header.ok();
                encoding->failed |= !header.ok();
                if (--encoding->reading > 0) return;
                if (std::exchange(encoding->failed, false)) {
                  activity_.Retry([this, encoding] { ReadSources(encoding); });
                } else {
                  Compute(encoding);
                }
              });
}

void StripeEncoder::Compute(std::shared_ptr<Encoding> encoding) {
  // Where no parity goes to the guard it may be gone by now.
  std::shared_ptr<Segment> segment = kept_ ? task_.guard.segment : nullptr;
  activity_.Submit(
      [encoding, code = task_.coded->code, segment = std::move(segment)] {
        EncodedPosition& encoded = *encoding->encoded;
        std::vector<std::span<const std::byte>> data;
        encoding->status = absl::OkStatus();
        for (size_t source = 0; source < encoding->data.size(); ++source) {
          const std::span<std::byte> tile = encoding->data[source];
          data.push_back(tile);
          encoding->suspect[source] = !tile.empty() && Crc32c(tile) != encoded.input_crcs[source];
          if (!encoding->suspect[source]) continue;
          encoding->status = absl::DataLossError("a block was not what its source sent");
        }
        if (!encoding->status.ok()) return;
        code->Encode(data, encoded.parities);
        encoded.parity_crcs.clear();
        for (const std::span<std::byte> parity : encoded.parities) {
          encoded.parity_crcs.push_back(Crc32c(parity));
        }
      },
      [this, encoding] { OnComputed(encoding); });
}

void StripeEncoder::OnComputed(std::shared_ptr<Encoding> encoding) {
  if (encoding->status.ok()) return encoding->done(std::move(encoding->encoded));
  task_.seams.log.Warn("version {}: {}; reading it again", task_.coded->version,
                       encoding->status.message());
  for (size_t source = 0; source < encoding->landed.size(); ++source) {
    if (encoding->suspect[source]) encoding->landed[source] = false;
  }
  activity_.Retry([this, encoding] { ReadSources(encoding); });
}

}  // namespace unreft::smp
