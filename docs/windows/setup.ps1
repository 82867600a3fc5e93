<#
.SYNOPSIS
Installs torchrl-gpu under Windows for the graphics card of this machine. -Undo takes all of it back.

.DESCRIPTION
Makes a virtual environment, installs the PyTorch that fits the card, installs torchrl-gpu from this
checkout, sets the user's variable PYTHONUTF8 so that Python reads and writes UTF-8 as on Linux, and runs
the doctor. Every step is printed before it is done. The file torchrl-gpu-setup.json in the virtual
environment records the former value of the variable; -Undo restores it and deletes the virtual
environment. No policy of the machine or of the user is changed: the execution policy holds for this
process only.

.PARAMETER Way
cuda (NVIDIA), rocm (AMD), xpu (Intel), directml (any card, with PyTorch 2.4.1), cpu, or auto: by the card.

.PARAMETER Venv
Folder of the virtual environment, in the checkout. Give directml a folder of its own.

.PARAMETER Python
Version of Python for the launcher py: 3.10, 3.11 or 3.12.

.PARAMETER Undo
Restores the former state and deletes the virtual environment.

.EXAMPLE
powershell -ExecutionPolicy Bypass -File docs\windows\setup.ps1

.EXAMPLE
powershell -ExecutionPolicy Bypass -File docs\windows\setup.ps1 -Way directml -Venv .venv-directml

.EXAMPLE
powershell -ExecutionPolicy Bypass -File docs\windows\setup.ps1 -Undo
#>
[CmdletBinding()]
param(
    [ValidateSet('auto', 'cuda', 'rocm', 'xpu', 'directml', 'cpu')]
    [string] $Way = 'auto',
    [string] $Venv = '.venv',
    [ValidateSet('3.10', '3.11', '3.12')]
    [string] $Python = '3.12',
    [switch] $Undo
)

$ErrorActionPreference = 'Stop'

$Root = Split-Path -Parent (Split-Path -Parent $PSScriptRoot)
$Folder = Join-Path $Root $Venv
$Record = Join-Path $Folder 'torchrl-gpu-setup.json'
$Program = Join-Path $Folder 'Scripts\python.exe'
$Variable = 'PYTHONUTF8'
$Pip = @('-m', 'pip', 'install')

function Write-Step([string] $Text) {
    Write-Host "> $Text"
}

function Invoke-Program([string] $File, [string[]] $Arguments) {
    Write-Host "  $File $($Arguments -join ' ')"
    & $File @Arguments
    if ($LASTEXITCODE -ne 0) {
        throw "$File ended with code $LASTEXITCODE"
    }
}

function Find-Way {
    $Cards = @(Get-CimInstance Win32_VideoController)
    foreach ($Card in $Cards) {
        Write-Host "  found: $($Card.Name), driver $($Card.DriverVersion)"
    }
    $Ids = ($Cards | ForEach-Object { $_.PNPDeviceID }) -join ' '
    if ($Ids -match 'VEN_10DE') { return 'cuda' }
    if ($Ids -match 'VEN_1002') { return 'rocm' }
    if ($Ids -match 'VEN_8086') { return 'xpu' }
    return 'cpu'
}

function Install-Torch([string] $Chosen) {
    $PyTorch = 'https://download.pytorch.org/whl'
    switch ($Chosen) {
        'cuda' { Invoke-Program $Program ($Pip + @('torch<2.14', '--index-url', "$PyTorch/cu130")) }
        'xpu' { Invoke-Program $Program ($Pip + @('torch<2.14', '--index-url', "$PyTorch/xpu")) }
        'cpu' { Invoke-Program $Program ($Pip + @('torch<2.14', '--index-url', "$PyTorch/cpu")) }
        'rocm' {
            $Amd = 'https://repo.amd.com/rocm/whl-multi-arch/'
            Invoke-Program $Program ($Pip + @('torch[device-all]<2.14', '--index-url', $Amd))
        }
        'directml' { Invoke-Program $Program ($Pip + @('torch==2.4.1', '--index-url', "$PyTorch/cpu")) }
    }
}

function Undo-Setup {
    if (-not (Test-Path $Record)) {
        throw "$Record is missing: this script did not make $Folder, and leaves it alone"
    }
    $Before = Get-Content $Record -Raw | ConvertFrom-Json
    if ($Before.Changed) {
        Write-Step "restore the user's variable $Variable"
        # PowerShell would turn null into an empty text, which is another value.
        $Former = if ($null -eq $Before.Former) { [NullString]::Value } else { $Before.Former }
        [Environment]::SetEnvironmentVariable($Variable, $Former, 'User')
    }
    Write-Step "delete $Folder"
    Remove-Item $Folder -Recurse -Force
}

function Start-Setup {
    Write-Step 'look for graphics cards'
    $Found = Find-Way
    $Chosen = if ($Way -eq 'auto') { $Found } else { $Way }
    Write-Step "way: $Chosen"

    if (Test-Path $Folder) {
        throw "$Folder is there already: name another by -Venv, or take it back by -Undo"
    }
    Write-Step "make the virtual environment $Folder"
    Invoke-Program 'py' @("-$Python", '-m', 'venv', $Folder)
    $Former = [Environment]::GetEnvironmentVariable($Variable, 'User')
    $Change = $Former -ne '1'
    @{ Changed = $Change; Former = $Former } | ConvertTo-Json | Set-Content $Record
    if ($Change) {
        Write-Step "set the user's variable $Variable to 1"
        [Environment]::SetEnvironmentVariable($Variable, '1', 'User')
    }
    $env:PYTHONUTF8 = '1'

    Write-Step 'install PyTorch'
    Install-Torch $Chosen

    Write-Step 'install torchrl-gpu (PyBullet is compiled: it needs the C++ Build Tools of Microsoft)'
    Invoke-Program $Program ($Pip + @('-e', '.'))
    if ($Chosen -eq 'directml') {
        Write-Step 'install torch-directml (pip reports a conflict with hoptorch, which nothing here uses)'
        Invoke-Program $Program ($Pip + @('torch-directml==0.2.5.dev240914'))
    }

    Write-Step 'examine the machine'
    Invoke-Program $Program @('-m', 'torchrl_gpu.doctor')

    Write-Host ''
    Write-Host "Activate it:  $(Join-Path $Folder 'Scripts\Activate.ps1')"
    Write-Host "Then train:   python -m trainers.run agent=sac env=fanuc"
    Write-Host "Take it back: powershell -ExecutionPolicy Bypass -File $PSCommandPath -Venv $Venv -Undo"
    if ($Chosen -eq 'rocm') {
        Write-Host 'If the doctor shows no device rocm:0, use DirectML:'
        Write-Host "  powershell -ExecutionPolicy Bypass -File $PSCommandPath -Way directml -Venv .venv-directml"
    }
}

# For this process only, so that scripts of the virtual environment may run in it.
Set-ExecutionPolicy -Scope Process -ExecutionPolicy Bypass -Force

Push-Location $Root
try {
    if ($Undo) { Undo-Setup } else { Start-Setup }
}
catch {
    Write-Host "error: $_"
    exit 1
}
finally {
    Pop-Location
}
