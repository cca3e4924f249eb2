// What `unreft status` says: of one daemon the parts that its job's has, too, and of a job of
// several nodes the whole.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tools/cli/context.h"
#include "tools/cli/table.h"

namespace unreft::cli {

// Of `document[key]`, an array of objects: one row each. `columns`: title and field.
Table RecordTable(const nlohmann::json& document, const char* key,
                  const std::vector<std::pair<const char*, const char*>>& columns);

// What is committed, and what would be restored if that is another version.
std::string CommittedText(const nlohmann::json& status);

// One line: protected, or why not.
std::string ProtectionText(const nlohmann::json& status);

// A line about the copies that are written without being asked for; empty where none are, or where
// this node does not lead.
std::string DurableText(const nlohmann::json& status);

// A daemon that does not count in its job, and not because either is starting.
bool HasProblem(const nlohmann::json& status);
// A line, of a daemon that does not count in its job; else empty.
std::string ProblemText(const nlohmann::json& status);
// A line, of a daemon that talks by TCP without TLS; else empty.
std::string InsecureText(const nlohmann::json& status);

// `status --check` of these nodes; the exit code.
int CheckProtection(const Context& context,
                    const std::vector<std::pair<uint64_t, nlohmann::json>>& nodes);

// `status` of a job of several nodes; the exit code. `asked`: the daemon's own status; null where
// all nodes are on this machine and any may be asked.
int JobStatus(const Context& context, const nlohmann::json* asked, bool check);

}  // namespace unreft::cli
