"""Programs that models wrote, graded by tests that they cannot reach.

tests           the tests as plain data, and those of HumanEval, MBPP, APPS and LiveCodeBench
extract         the program of a reply
grader          `grade_python`: runs the tests in sandboxes
compare         what a program returned or printed, and what is expected
wire            values between processes as JSON
collection      the tests that code defines, and whether all of them ran
program_side, tests_side    what runs in the sandboxes, as `collection` does; nothing imports them
"""
