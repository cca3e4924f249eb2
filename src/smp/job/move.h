// Move: what a rule of the leader decides. Nothing has happened yet: the Leader carries it out.
#pragma once

#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"
#include "base/log.h"
#include "meta/job_store.h"
#include "smp/job/durable_copies.h"
#include "smp/job/round_reading.h"

namespace unreft::smp {

// Said once until something was written.
struct Line {
  LogLevel level = LogLevel::kInfo;
  std::string text;
};

struct ReadingQuestion {
  RoundReading::Life life;
  Version version;
  bool want_manifests = false;
};

struct CopyLoad {
  DurableCopy copy;
  std::map<NodeSlot, std::vector<Rank>> homes;
};

// Who has kept a copy of the job's records, in that slot or waiting for it, and how new it is.
struct Keeper {
  NodeSlot slot;
  std::string address;
  meta::Stamp stamp;
};

struct Move {
  std::optional<meta::JobChange> write;
  const char* fault_point = nullptr;  // passed once that is written
  bool abandons = false;              // what is written is a new bound
  bool commits = false;               // what is written is a version that is protected
  std::vector<Line> say;
  std::optional<Time> wake;  // by then the rules say something else

  // To read their slabs of a version again.
  std::vector<ReadingQuestion> ask_reading;
  // For the manifests of a version.
  std::vector<std::pair<NodeSlot, Version>> ask_manifests;

  // Which durable copies of the job there are.
  bool search_copies = false;
  // To load one, each node the slabs of its ranks.
  std::optional<CopyLoad> load_copy;

  // For its copy of the job's records.
  std::optional<Keeper> ask_kept;

  // What was found, which the next facts have.
  std::map<Version, std::string> rejected;  // more, as in VersionNotes
  std::optional<Version> misfit;            // one more, as in RoundReading
  // To the request for pins that has waited longest, once that is written.
  std::optional<absl::StatusOr<PinReply>> pin_answer;

  // Nothing else may be decided before the records, or reports, are others.
  bool waits = false;

  bool HasFound() const { return !rejected.empty() || misfit || pin_answer; }
  // No later rule may say anything before that is carried out.
  bool IsFinal() const { return write || waits || HasFound(); }
};

}  // namespace unreft::smp
