#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "smp/memory/memory_plan.h"
#include "tools/cli/commands.h"
#include "tools/cli/table.h"

namespace unreft::cli {
namespace {

// Sums of what a node of many such ranks takes do not wrap.
constexpr uint64_t kRankBytesMax = uint64_t{1} << 44;
// What a manifest says of a tensor and of its part, with a name of usual length, and beside them.
constexpr uint64_t kManifestBytesPerTensor = 200;
constexpr uint64_t kManifestBytesFixed = 512;

struct PlanOptions {
  uint64_t ranks = 1;
  uint64_t replicas = 1;
  uint64_t bytes_per_rank = 0;
  uint64_t parameters = 0;
  uint64_t bytes_per_parameter = 14;
  uint64_t tensors_per_rank = 1000;
  uint64_t extras_bytes = 0;
  smp::NodeOptions node;
};

uint64_t DivideUp(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

absl::Status Check(const PlanOptions& options) {
  if ((options.bytes_per_rank == 0) == (options.parameters == 0)) {
    return absl::InvalidArgumentError(
        "plan-memory: needed one of --bytes-per-rank and --parameters, found both or none");
  }
  if (options.ranks % options.replicas != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "--replicas: needed a divisor of the {} ranks, found {}", options.ranks, options.replicas));
  }
  if (!std::has_single_bit(options.node.block_bytes)) {
    return absl::InvalidArgumentError(
        fmt::format("--block-bytes: needed a power of two, found {}", options.node.block_bytes));
  }
  const uint64_t nodes = options.node.nodes;
  if (nodes > options.ranks) {
    return absl::InvalidArgumentError(fmt::format(
        "--nodes: needed at most one for each of the {} ranks, found {}", options.ranks, nodes));
  }
  const uint64_t members = uint64_t{options.node.data_chunks} + options.node.parity_chunks;
  if (options.node.parity_chunks > 0 && members > nodes) {
    return absl::InvalidArgumentError(
        fmt::format("--data-chunks + --parity-chunks: {} + {} need {} nodes, found {}",
                    options.node.data_chunks, options.node.parity_chunks, members, nodes));
  }
  return absl::OkStatus();
}

// Of the state that a rank holds, the parts that its replicas capture included.
absl::StatusOr<uint64_t> StatePerRank(const PlanOptions& options) {
  uint64_t bytes = options.bytes_per_rank;
  if (options.parameters > 0) {
    bytes = DivideUp(options.parameters * options.bytes_per_parameter,
                     options.ranks / options.replicas);
  }
  if (bytes <= kRankBytesMax) return bytes;
  return absl::InvalidArgumentError(
      fmt::format("plan-memory: a rank has at most {} bytes, found {}", kRankBytesMax, bytes));
}

smp::RankNeeds NeedsOf(const PlanOptions& options, uint64_t state_bytes) {
  smp::RankNeeds needs;
  needs.state_bytes = state_bytes;
  needs.slot.data_bytes = DivideUp(state_bytes, options.replicas);
  needs.slot.extras_bytes = std::max(options.node.extras_bytes_min, 2 * options.extras_bytes);
  needs.slot.manifest_bytes =
      kManifestBytesFixed + options.tensors_per_rank * kManifestBytesPerTensor;
  return needs;
}

std::string Text(const smp::MemoryPlan& plan, uint64_t scratch_bytes, uint64_t ranks,
                 const smp::RankNeeds& rank) {
  Table table({"shared memory of a node", "", "bytes"});
  const auto add = [&](std::string what, uint64_t bytes) {
    table.Add({std::move(what), HumanBytes(bytes), fmt::format("{}", bytes)});
  };
  add(Count(plan.slots, "slot"), plan.slot_bytes);
  add(Count(plan.guards, "guard"), plan.guard_bytes);
  add("staging of restores", plan.staging_bytes);
  add("records and control pages", plan.control_bytes);
  add("together", plan.Sum());
  if (scratch_bytes > 0) add("besides, of the daemon's own, for coding", scratch_bytes);
  return fmt::format("{} on a node, each with {} of state, of which it captures {}:\n\n{}",
                     Count(ranks, "rank"), HumanBytes(rank.state_bytes),
                     HumanBytes(rank.slot.data_bytes), table.Text());
}

int PlanIt(const Context& context, const PlanOptions& options) {
  if (absl::Status status = Check(options); !status.ok()) return Fail(context, status);
  const absl::StatusOr<uint64_t> state_bytes = StatePerRank(options);
  if (!state_bytes.ok()) return Fail(context, state_bytes.status());
  const uint64_t ranks = DivideUp(options.ranks, options.node.nodes);
  const smp::RankNeeds rank = NeedsOf(options, *state_bytes);
  const smp::MemoryPlan plan =
      smp::PlanMemory(options.node, std::vector<smp::RankNeeds>(ranks, rank));
  const uint64_t scratch_bytes = smp::ScratchBytes(options.node);
  Print(context,
        {{"ranks_per_node", ranks},
         {"state_bytes_per_rank", rank.state_bytes},
         {"captured_bytes_per_rank", rank.slot.data_bytes},
         {"slots", plan.slots},
         {"slot_bytes", plan.slot_bytes},
         {"guards", plan.guards},
         {"guard_bytes", plan.guard_bytes},
         {"staging_bytes", plan.staging_bytes},
         {"control_bytes", plan.control_bytes},
         {"bytes", plan.Sum()},
         {"scratch_bytes", scratch_bytes}},
        Text(plan, scratch_bytes, ranks, rank));
  return kExitOk;
}

constexpr char kFooter[] =
    R"text(Of the node with the most ranks, by the options that its unreftd is started with.
  unreft plan-memory --parameters 70B --ranks 96 --nodes 12 --data-chunks 4 --parity-chunks 2
  unreft plan-memory --bytes-per-rank 40GiB --replicas 4 --ranks 8

With --parameters a rank's state is all of it by the ranks of a replica: it is taken to be
sharded evenly over them. 14 bytes for each: weights in bf16, master weights and two moments
in fp32. unreftd prints the sum for the state that the ranks really have when they register.)text";

}  // namespace

void AddPlanMemory(CLI::App& app, Context& context) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command =
      AddCommand(app, "plan-memory", "how much shared memory the nodes of a job need");
  const auto count = [&](const char* name, uint64_t& value, const char* text, uint64_t max) {
    command->add_option(name, value, text)
        ->check(CLI::Range(uint64_t{1}, max))
        ->capture_default_str();
  };
  const auto bytes = [&](const char* name, uint64_t& value, const char* text) {
    command->add_option(name, value, text)
        ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
        ->check(CLI::Range(uint64_t{0}, kRankBytesMax))
        ->capture_default_str();
  };
  smp::NodeOptions& node = options->node;
  count("--ranks", options->ranks, "training processes of the job", 65536);
  count("--nodes", node.nodes, "nodes that they are on", 65536);
  count("--replicas", options->replicas, "ranks that hold the same state: each captures a part",
        65536);
  bytes("--bytes-per-rank", options->bytes_per_rank,
        "state that a rank holds, its replicas' parts included: 40GiB");
  command->add_option("--parameters", options->parameters, "of the model, in place of that: 70B")
      ->transform(CLI::AsNumberWithUnit(std::map<std::string, uint64_t>{
          {"K", 1'000}, {"M", 1'000'000}, {"B", 1'000'000'000}, {"T", 1'000'000'000'000}}))
      ->check(CLI::Range(uint64_t{1}, uint64_t{1'000'000'000'000'000}));
  count("--bytes-per-parameter", options->bytes_per_parameter,
        "of weights and optimizer state together", 1024);
  count("--tensors-per-rank", options->tensors_per_rank, "for the size of the manifests", 1 << 24);
  bytes("--extras-bytes", options->extras_bytes, "pickled extras of a rank");
  command->add_option("--slots-per-rank", node.slots_per_rank, "as of unreftd")
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  command->add_option("--pins", node.pins, "as of unreftd")
      ->check(CLI::Range(0, 16))
      ->capture_default_str();
  command->add_option("--data-chunks", node.data_chunks, "k of the protection groups")
      ->check(CLI::Range(1, 128))
      ->capture_default_str();
  command->add_option("--parity-chunks", node.parity_chunks, "m of the protection groups")
      ->check(CLI::Range(0, 127))
      ->capture_default_str();
  command->add_option("--block-bytes", node.block_bytes, "as of unreftd")
      ->check(CLI::Range(4096, 1 << 30))
      ->capture_default_str();
  bytes("--restore-staging-bytes", node.restore_staging_bytes, "as of unreftd");
  command->footer(kFooter);
  OnChosenForAll(command, context, [&context, options] { return PlanIt(context, *options); });
}

}  // namespace unreft::cli
