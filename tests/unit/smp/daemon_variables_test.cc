// Every option of unreftd is a variable that the command and trainers know, too.

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "base/variables.h"
#include "smp/node/daemon_options.h"

namespace unreft::smp {
namespace {

TEST(DaemonVariables, AreKnownToAll) {
  CLI::App app;
  DaemonOptions options;
  AddDaemonOptions(app, options);
  size_t count = 0;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_envname().empty()) continue;
    ++count;
    EXPECT_TRUE(IsVariable(option->get_envname())) << option->get_envname();
  }
  EXPECT_GT(count, 40U);
  EXPECT_FALSE(IsVariable("UNREFT_NOT_THIS_ONE"));
}

}  // namespace
}  // namespace unreft::smp
