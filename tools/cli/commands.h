// The commands of the CLI, one file each (command_<name>.cc). Each function adds its subcommand to
// `app`; when that is chosen, the parse leaves in the context what is to be run. `context` lives as
// long as `app`.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>

#include "tools/cli/context.h"

namespace unreft::cli {

void AddUp(CLI::App& app, Context& context);
void AddCerts(CLI::App& app, Context& context);
void AddDown(CLI::App& app, Context& context);
void AddStatus(CLI::App& app, Context& context);
void AddVersions(CLI::App& app, Context& context);
void AddVerify(CLI::App& app, Context& context);
void AddPin(CLI::App& app, Context& context);
void AddUnpin(CLI::App& app, Context& context);
void AddResize(CLI::App& app, Context& context);
void AddRewind(CLI::App& app, Context& context);
void AddForget(CLI::App& app, Context& context);
void AddFreshStart(CLI::App& app, Context& context);
void AddExport(CLI::App& app, Context& context);
void AddMetrics(CLI::App& app, Context& context);
void AddInject(CLI::App& app, Context& context);
void AddPlan(CLI::App& app, Context& context);
void AddPlanMemory(CLI::App& app, Context& context);
void AddMemory(CLI::App& app, Context& context);
void AddRun(CLI::App& app, Context& context);
void AddSupervise(CLI::App& app, Context& context);  // hidden: what `up --supervise` leaves behind

// A subcommand after which the options common to all may stand, too.
CLI::App* AddCommand(CLI::App& app, const std::string& name, const std::string& description);

// --own of a question that is about the whole job otherwise.
std::shared_ptr<bool> AddOwn(CLI::App* command);

// `run` returns the exit code. Of a command about one node: with several, one must be given.
void OnChosen(CLI::App* command, Context& context, std::function<int()> run);
// Of a command that is about all nodes when none is given.
void OnChosenForAll(CLI::App* command, Context& context, std::function<int()> run);

}  // namespace unreft::cli
