#include "smp/protect/guarding.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/crc32c.h"
#include "base/format.h"
#include "smp/job/cluster_records.h"
#include "smp/protect/slab_source.h"

namespace unreft::smp {
namespace {

constexpr Duration kWarnEvery = std::chrono::seconds(10);

absl::StatusOr<ReadHeader> ParseHeader(const std::string& bytes, size_t crcs, size_t input_crcs) {
  ReadHeader header;
  if (!header.ParseFromString(bytes) || static_cast<size_t>(header.crcs_size()) != crcs ||
      static_cast<size_t>(header.input_crcs_size()) != input_crcs) {
    return absl::DataLossError(fmt::format("a read's header needs {} and {} CRCs, found {} and {}",
                                           crcs, input_crcs, header.crcs_size(),
                                           header.input_crcs_size()));
  }
  return header;
}

}  // namespace

Guarding::Guarding(Seams seams, const NodeOptions& options, Version version, GroupView group,
                   GroupSlabs slabs, Guard& guard, Mode mode, OnEnd on_end)
    : seams_(std::move(seams)),
      options_(options),
      version_(version),
      group_(std::move(group)),
      slabs_(std::move(slabs)),
      guard_(guard),
      coding_(CodingOf(group_.ToMessage(), {slabs_.members().begin(), slabs_.members().end()})),
      mode_(mode),
      on_end_(std::move(on_end)) {
  encoded_.resize(slabs_.layout().positions(), mode_ == Mode::kHandOn);
  ended_ = end_told_ = mode_ == Mode::kHandOn;
  holders_.resize(group_.shape.m);
  const std::vector<uint32_t> stripes = slabs_.layout().ParityStripes(group_.self);
  for (uint32_t parity = 0; parity < stripes.size(); ++parity) {
    lanes_.push_back({parity, stripes[parity], mode_ == Mode::kAlone || parity == 0, 0, 0, 0});
  }
}

Guarding::~Guarding() {
  seams_.executor.Cancel(patience_);
  for (const auto& [transfer, lane] : transfers_) seams_.peers.Cancel(transfer);
  RefuseWaiting();
}

void Guarding::Start() {
  if (ended_) return;
  for (const uint32_t member : group_.Predecessors()) FetchReplica(member, false);
  RunRules();
}

void Guarding::Cancel() {
  if (cancelled_) return;
  cancelled_ = true;
  for (const auto& [transfer, lane] : transfers_) seams_.peers.Cancel(transfer);
  RefuseWaiting();
  // In a turn of its own, should nothing be on its way.
  Begun();
  seams_.executor.Post(lifetime_.Bind([this] { Ended(); }));
}

void Guarding::DoWithout(NodeSlot slot) {
  const auto found = std::find(group_.slots.begin(), group_.slots.end(), slot);
  const auto member = static_cast<uint32_t>(found - group_.slots.begin());
  if (ended_ || found == group_.slots.end() || !gone_.insert(member).second) return;
  for (uint32_t index = 0; index < lanes_.size(); ++index) {
    Lane& lane = lanes_[index];
    if (lane.encodes || slabs_.layout().Aggregator(lane.stripe) != member) continue;
    lane.encodes = true;
    seams_.log.Warn(
        "version {}: node {} is gone, its stripe is encoded here from position {} of {}", version_,
        slot, lane.next - lane.running, slabs_.layout().positions());
    // What was asked of it fails, and is tried again the other way.
    for (const auto& [transfer, of] : transfers_) {
      if (of == index) seams_.peers.Cancel(transfer);
    }
  }
  for (uint32_t parity = 1; parity < group_.shape.m; ++parity) {
    if (slabs_.layout().MemberOf(group_.self, group_.shape.k + parity) != member) continue;
    holders_[parity].asks = false;
  }
  Serve();
  RunRules();
}

bool Guarding::DoesWithout(NodeSlot slot) const {
  const auto found = std::find(group_.slots.begin(), group_.slots.end(), slot);
  return gone_.contains(static_cast<uint32_t>(found - group_.slots.begin()));
}

void Guarding::Ended() {
  --running_;
  RunRules();
}

bool Guarding::Ending() { return cancelled_ || !failure_.ok(); }

void Guarding::End(absl::StatusOr<std::shared_ptr<const GuardRecord>> result) {
  ended_ = true;
  seams_.executor.Post(lifetime_.Bind([this, result = std::move(result)]() mutable {
    end_told_ = true;
    on_end_(std::move(result));
  }));
}

void Guarding::RunRules() {
  if (ended_) return;
  if (Ending()) {
    if (running_ > 0) return;
    return End(cancelled_ ? absl::CancelledError("given up") : failure_);
  }
  bool complete = replicas_.size() == group_.Predecessors().size();
  for (Lane& lane : lanes_) {
    RunLane(lane);
    complete &= lane.finished == slabs_.layout().positions();
  }
  if (complete && !sealing_) Seal();
}

void Guarding::RunLane(Lane& lane) {
  // What waits to be handed on counts, too: it takes memory.
  while (lane.next < slabs_.layout().positions() &&
         lane.running + (lane.parity == 0 ? fresh_.size() : 0) < options_.protect_window) {
    ++lane.running;
    const uint64_t position = lane.next++;
    const auto index = static_cast<uint32_t>(&lane - lanes_.data());
    StartPosition(index, position);
  }
  if (lane.parity == 0) BePatient(lane);
}

void Guarding::StartPosition(uint32_t lane, uint64_t position) {
  if (lanes_[lane].encodes) {
    StartEncoding(lane, position, false);
  } else {
    FetchParity(lane, position);
  }
}

void Guarding::Retry(absl::AnyInvocable<void()> what) {
  Begun();
  seams_.executor.After(options_.read_retry,
                        lifetime_.Bind([this, what = std::move(what)]() mutable {
                          if (!Ending()) what();
                          Ended();
                        }));
}

// --- a lane that encodes ---

void Guarding::StartEncoding(uint32_t lane, uint64_t position, bool again) {
  auto encoding = std::make_shared<Encoding>();  // shared with the pool, and with those it is
                                                 // handed on to
  encoding->lane = lane;
  encoding->position = position;
  encoding->again = again;
  const ec::CodeShape shape = group_.shape;
  encoding->tiles = seams_.tiles.Take(shape.n(), options_.block_bytes);
  encoding->input_crcs.resize(shape.k);
  encoding->landed.resize(shape.k);
  encoding->suspect.resize(shape.k);
  for (uint32_t source = 0; source < shape.k; ++source) {
    const bool is_there =
        slabs_.layout().BlockAt(lanes_[lane].stripe, source, position).has_value();
    encoding->data.push_back(is_there ? encoding->tiles[source] : std::span<std::byte>());
  }
  for (uint32_t parity = 0; parity < shape.m; ++parity) {
    // Encoding again does not touch the guard: what is there is right already.
    const bool is_own = parity == lanes_[lane].parity && !again;
    encoding->parity.push_back(is_own ? guard_.view->block(parity, position)
                                      : encoding->tiles[shape.k + parity]);
  }
  ReadSources(std::move(encoding));
}

void Guarding::ReadSources(std::shared_ptr<Encoding> encoding) {
  std::vector<uint32_t> missing;
  for (uint32_t source = 0; source < group_.shape.k; ++source) {
    if (!encoding->data[source].empty() && !encoding->landed[source]) missing.push_back(source);
  }
  encoding->reading = static_cast<uint32_t>(missing.size());
  // Beyond the end of all its members' slabs a stripe is zeros that nobody has.
  if (missing.empty()) return Encode(std::move(encoding));
  for (const uint32_t source : missing) ReadSourceBlock(encoding, source);
}

void Guarding::ReadSourceBlock(std::shared_ptr<Encoding> encoding, uint32_t source) {
  const ec::StripeLayout& layout = slabs_.layout();
  const uint32_t stripe = lanes_[encoding->lane].stripe;
  const uint32_t member = layout.MemberOf(stripe, source);
  const RankBlock block =
      slabs_.BlockOf(member, *layout.BlockAt(stripe, source, encoding->position));
  ReadRequest request;
  request.set_kind(ReadRequest::DATA);
  SetVersion(version_, request);
  request.set_rank(block.rank.value);
  request.set_first_block(block.block);
  request.set_blocks(1);
  request.set_is_suspect(encoding->suspect[source]);
  Begun();
  auto transfer = std::make_shared<TransferId>();  // known to its own end
  *transfer = seams_.peers.Read(
      group_.slots[member], request.SerializeAsString(), encoding->data[source],
      options_.read_timeout,
      lifetime_.Bind([this, encoding, source, transfer](absl::StatusOr<std::string> bytes) {
        transfers_.erase(*transfer);
        absl::StatusOr<ReadHeader> header =
            bytes.ok() ? ParseHeader(*bytes, 1, 0) : absl::StatusOr<ReadHeader>(bytes.status());
        if (header.ok()) encoding->input_crcs[source] = header->crcs(0);
        encoding->landed[source] = header.ok();
        encoding->failed |= !header.ok();
        if (--encoding->reading == 0 && !Ending()) {
          // What has landed is not read again.
          if (std::exchange(encoding->failed, false)) {
            Retry([this, encoding] { ReadSources(encoding); });
          } else {
            Encode(encoding);
          }
        }
        Ended();
      }));
  transfers_[*transfer] = encoding->lane;
}

void Guarding::Encode(std::shared_ptr<Encoding> encoding) {
  Begun();
  seams_.pool.Submit(
      [encoding, code = seams_.code, segment = guard_.segment] {
        std::vector<std::span<const std::byte>> data;
        encoding->status = absl::OkStatus();
        for (size_t source = 0; source < encoding->data.size(); ++source) {
          const std::span<std::byte> tile = encoding->data[source];
          data.push_back(tile);
          encoding->suspect[source] = !tile.empty() && Crc32c(tile) != encoding->input_crcs[source];
          if (!encoding->suspect[source]) continue;
          encoding->status = absl::DataLossError("a block was not what its source sent");
        }
        if (!encoding->status.ok()) return;
        code->Encode(data, encoding->parity);
        encoding->parity_crcs.clear();
        for (const std::span<std::byte> parity : encoding->parity) {
          encoding->parity_crcs.push_back(Crc32c(parity));
        }
      },
      seams_.executor, lifetime_.Bind([this, encoding] {
        if (!Ending()) OnEncoded(encoding);
        Ended();
      }));
}

void Guarding::OnEncoded(std::shared_ptr<Encoding> encoding) {
  if (!encoding->status.ok()) {
    seams_.log.Warn("version {}: {}; reading it again", version_, encoding->status.message());
    for (size_t source = 0; source < encoding->landed.size(); ++source) {
      if (encoding->suspect[source]) encoding->landed[source] = false;
    }
    return Retry([this, encoding] { ReadSources(encoding); });
  }
  Lane& lane = lanes_[encoding->lane];
  if (!encoding->again) {
    guard_.view->parity_crcs(lane.parity, slabs_.layout().positions())[encoding->position] =
        encoding->parity_crcs[lane.parity];
    const auto inputs = guard_.view->input_crcs(lane.parity, encoding->position, group_.shape.k);
    std::copy(encoding->input_crcs.begin(), encoding->input_crcs.end(), inputs.begin());
    --lane.running;
    ++lane.finished;
  }
  if (lane.parity == 0) encoded_[encoding->position] = true;
  encoding_again_.erase(encoding->position);
  if (lane.parity != 0 || mode_ == Mode::kAlone || group_.shape.m == 1) return;
  fresh_[encoding->position] = {encoding, {}};
  Serve();
}

// --- a lane that is handed its parities ---

void Guarding::FetchParity(uint32_t lane_index, uint64_t position) {
  const Lane& lane = lanes_[lane_index];
  ReadRequest request;
  request.set_kind(ReadRequest::FRESH_PARITY);
  SetVersion(version_, request);
  request.set_stripe(lane.stripe);
  request.set_parity(lane.parity);
  request.set_first_block(position);
  request.set_blocks(1);
  request.set_coding(coding_);
  Begun();
  auto transfer = std::make_shared<TransferId>();  // known to its own end
  *transfer = seams_.peers.Read(
      group_.slots[slabs_.layout().Aggregator(lane.stripe)], request.SerializeAsString(),
      guard_.view->block(lane.parity, position), options_.read_timeout,
      lifetime_.Bind([this, lane_index, position, transfer,
                      segment = guard_.segment](absl::StatusOr<std::string> header) {
        transfers_.erase(*transfer);
        if (!Ending()) {
          if (header.ok()) {
            OnFetched(lane_index, position, *header);
          } else {
            Retry([this, lane_index, position] { StartPosition(lane_index, position); });
          }
        }
        Ended();
      }));
  transfers_[*transfer] = lane_index;
}

void Guarding::OnFetched(uint32_t lane_index, uint64_t position, const std::string& bytes) {
  absl::StatusOr<ReadHeader> header = ParseHeader(bytes, 1, group_.shape.k);
  if (!header.ok()) {
    seams_.log.Warn("version {}: {}", version_, header.status().message());
    return Retry([this, lane_index, position] { StartPosition(lane_index, position); });
  }
  auto crc = std::make_shared<uint32_t>();  // passes from the pool to the executor
  Begun();
  seams_.pool.Submit(
      [segment = guard_.segment, crc,
       block = guard_.view->block(lanes_[lane_index].parity, position)] { *crc = Crc32c(block); },
      seams_.executor, lifetime_.Bind([this, lane_index, position, crc, header = *header] {
        if (Ending()) return Ended();
        Lane& lane = lanes_[lane_index];
        if (*crc != header.crcs(0)) {
          seams_.log.Warn("version {}: parity {} of position {} was not what was sent", version_,
                          lane.parity, position);
          Retry([this, lane_index, position] { StartPosition(lane_index, position); });
          return Ended();
        }
        guard_.view->parity_crcs(lane.parity, slabs_.layout().positions())[position] = *crc;
        const auto inputs = guard_.view->input_crcs(lane.parity, position, group_.shape.k);
        std::copy(header.input_crcs().begin(), header.input_crcs().end(), inputs.begin());
        --lane.running;
        ++lane.finished;
        Ended();
      }));
}

// --- replicas, and the end ---

void Guarding::FetchReplica(uint32_t member, bool is_suspect) {
  MetaRequest request;
  request.set_is_suspect(is_suspect);
  SetVersion(version_, request);
  request.set_slot(group_.slots[member].value);
  for (const RankSlab& slab : slabs_.members()[member].slabs()) request.add_ranks(slab.rank());
  if (request.ranks().empty()) {
    replicas_[member] = {};
    return;
  }
  Begun();
  seams_.peers.Ask<MetaReply>(
      group_.slots[member], "meta", request, options_.read_timeout,
      lifetime_.Bind([this, member](absl::StatusOr<MetaReply> reply) {
        absl::Status status = reply.status();
        std::vector<SlabMeta> slabs;
        if (reply.ok()) slabs.assign(reply->slabs().begin(), reply->slabs().end());
        for (const SlabMeta& slab : slabs) {
          if (status.ok()) status = CheckSlabMeta(slab);
        }
        if (status.ok()) {
          replicas_[member] = std::move(slabs);
        } else if (!Ending()) {
          seams_.log.WarnEvery("replica", kWarnEvery, seams_.executor.Now(),
                               "version {}: the manifests of node {} were not received yet: {}",
                               version_, group_.slots[member], status.message());
          // The member may have found out by itself, too.
          const bool has_rotted = absl::IsDataLoss(status);
          Retry([this, member, has_rotted] { FetchReplica(member, has_rotted); });
        }
        Ended();
      }));
}

void Guarding::Seal() {
  sealing_ = true;
  auto record = std::make_shared<GuardRecord>();  // passes to the pool and back
  record->set_format(kGuardRecordFormat);
  record->set_min_reader(kGuardRecordMinReader);
  *record->mutable_group() = group_.ToMessage();
  record->set_member(group_.self);
  for (const MemberSlab& member : slabs_.members()) *record->add_members() = member;
  for (const auto& [member, slabs] : replicas_) {
    MemberReplica& replica = *record->add_replicas();
    replica.set_slot(group_.slots[member].value);
    for (const SlabMeta& slab : slabs) *replica.add_slabs() = slab;
  }
  auto status = std::make_shared<absl::Status>();  // passes from the pool to the executor
  Begun();
  seams_.pool.Submit([segment = guard_.segment, view = *guard_.view, generation = guard_.generation,
                      record, status] { *status = SealGuard(view, generation, *record); },
                     seams_.executor, lifetime_.Bind([this, record, status] {
                       --running_;
                       if (cancelled_) return RunRules();
                       if (!status->ok()) return End(*status);
                       End(std::shared_ptr<const GuardRecord>(record));
                     }));
}

}  // namespace unreft::smp
