// Node 0 of a protection group, over a simulated network: a test says what the other members
// answer.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "layout/manifest.h"
#include "meta/job_store.h"
#include "smp/desk/node_state.h"
#include "smp/job/peers.h"
#include "smp/memory/slot_store.h"
#include "tests/fakes/capture_log_sink.h"
#include "tests/fakes/sim_transport.h"
#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {

inline std::vector<std::byte> RandomBytes(Random& random, size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = std::byte(random.Below(256));
  return bytes;
}

// What a member answers to the read of one block.
inline ReadSource SourceOf(std::span<const std::byte> block) {
  ReadHeader header;
  header.add_crcs(Crc32c(block));
  ReadSource source;
  source.header = header.SerializeAsString();
  source.parts.push_back(block);
  return source;
}

class GroupFixture : public SmpFixture {
 protected:
  static constexpr Version kVersion{Timeline{1}, Step{9}};
  static constexpr uint64_t kBlockBytes = 64;

  // RS(k,m) of the nodes 0 to k + m - 1, which are all that there are.
  GroupFixture(uint32_t k, uint32_t m) {
    options_.nodes = k + m;
    options_.data_chunks = k;
    options_.parity_chunks = m;
    options_.block_bytes = kBlockBytes;
    options_.read_retry = std::chrono::milliseconds(10);
    job_.store_id = "0123456789abcdef";
    Group& group = *job_.view.value.add_groups();
    group.set_k(k);
    for (uint64_t slot = 0; slot < k + m; ++slot) {
      job_.present[NodeSlot{slot}].set_address(AddressOf(NodeSlot{slot}));
      group.add_slots(slot);
    }
  }
  ~GroupFixture() override {
    InTurn([this] { own_peers_.reset(); });
    for (auto& [slot, other] : others_) other.executor->Kill();
  }

  const Group& group() const { return job_.view.value.groups(0); }

  // Once the options are as they are to be. `on_slot_change`: as the slots' store tells it.
  void StartOwn(std::function<void()> on_slot_change = [] {}) {
    own_transport_ = *network_.NewTransport(*executor_, AddressOf(NodeSlot{0}));
    std::unique_ptr<NodeRecord> record = NewRecord();
    InTurn([&] {
      state_ = std::make_unique<NodeState>(
          NodeState{{*executor_, pool_, random_, segments_, *records_, processes_, log_}});
      state_->options = options_;
      state_->prefix = MemoryPrefix(options_);
      state_->record = std::move(record);
      state_->memory = std::make_unique<SegmentPool>(
          SegmentPool::Seams{*executor_, pool_, segments_, log_}, state_->options);
      state_->slots = std::make_unique<SlotStore>(
          SlotStore::Seams{*executor_, *state_->memory, processes_, log_}, state_->options,
          boot_id_, state_->record->incarnation(), state_->record->session(), on_slot_change);
      state_->staging = std::make_unique<StagingArea>(
          StagingArea::Seams{*executor_, *state_->memory, processes_, log_}, state_->options);
      state_->tiles = std::make_unique<TilePool>(*executor_, TileSharesOf(state_->options));
      own_peers_ = std::make_unique<Peers>(*executor_, *own_transport_, job_, "job", NodeSlot{0},
                                           RandomId{2});
    });
  }
  // `serve` says, in its turn, what it answers.
  void StartOther(NodeSlot slot, std::function<void(Peers&)> serve) {
    Other& other = others_[slot];
    other.executor = scheduler_.NewExecutor(AddressOf(slot));
    other.transport = *network_.NewTransport(*other.executor, AddressOf(slot));
    other.executor->Deliver(Duration{}, [this, slot, &other, serve = std::move(serve)] {
      other.peers = std::make_unique<Peers>(*other.executor, *other.transport, job_, "job", slot,
                                            RandomId{1});
      serve(*other.peers);
    });
  }
  // Node 0's answer to another.
  absl::StatusOr<std::string> Call(NodeSlot from, std::string method, std::string body) {
    absl::StatusOr<std::string> answer = absl::UnknownError("no answer");
    Other& other = others_.at(from);
    other.executor->Post([&] {
      other.peers->Call(NodeSlot{0}, method, body, std::chrono::seconds(1),
                        [&answer](auto reply) { answer = std::move(reply); });
    });
    Settle(std::chrono::seconds(2));
    return answer;
  }

  // What becomes of another's read of one block of node 0.
  absl::Status Read(NodeSlot from, std::string body) {
    std::vector<std::byte> into(kBlockBytes);
    absl::Status status = absl::UnknownError("no answer");
    Other& other = others_.at(from);
    other.executor->Post([&] {
      other.peers->Read(NodeSlot{0}, body, into, std::chrono::seconds(1),
                        [&status](auto header) { status = header.status(); });
    });
    Settle(std::chrono::seconds(2));
    return status;
  }

  // A slab that consists of that one tensor.
  static SlabDescription DescriptionOf(Rank rank, uint64_t world, const TensorSpec& tensor,
                                       std::span<const std::byte> data) {
    layout::SlotManifest manifest;
    manifest.job = "job";
    manifest.version = kVersion;
    manifest.rank = rank;
    manifest.world = world;
    manifest.tensors = {tensor};
    manifest.parts = {{.tensor = 0, .shard_begin = 0, .bytes = data.size(), .slab_offset = 0}};
    manifest.block_bytes = kBlockBytes;
    manifest.data_bytes = data.size();
    SlabDescription description;
    description.set_rank(rank.value);
    description.set_world(world);
    description.set_manifest(layout::EncodeManifest(manifest));
    std::vector<uint32_t> crcs;
    for (uint64_t at = 0; at < data.size(); at += kBlockBytes) {
      crcs.push_back(Crc32c(data.subspan(at, kBlockBytes)));
    }
    description.set_crc_table(
        std::string(reinterpret_cast<const char*>(crcs.data()), crcs.size() * sizeof(uint32_t)));
    description.set_manifest_crc(CrcOf(description.manifest()));
    description.set_crc_table_crc(CrcOf(description.crc_table()));
    description.set_extras_crc(CrcOf(""));
    return description;
  }

  SimNetwork network_{scheduler_};
  meta::JobState job_;
  CaptureLogSink log_lines_;
  Log log_{log_lines_};
  std::unique_ptr<Peers> own_peers_;
  std::unique_ptr<NodeState> state_;

 private:
  struct Other {
    std::unique_ptr<SimExecutor> executor;
    std::unique_ptr<Transport> transport;
    std::unique_ptr<Peers> peers;
  };

  static std::string AddressOf(NodeSlot slot) { return fmt::format("node{}", slot); }
  static uint32_t CrcOf(const std::string& bytes) {
    return Crc32c(std::as_bytes(std::span(bytes)));
  }

  std::unique_ptr<Transport> own_transport_;
  std::map<NodeSlot, Other> others_;
};

}  // namespace unreft::smp
